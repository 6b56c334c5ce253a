//! The kind of a data set's encoded samples, derived from the name of their column.

/// The kind of the encoded samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    Picture,
    Speech,
}

impl Medium {
    /// Returns the kind for a column. Every audio layout names its payload column `audio`.
    pub(crate) fn of(column: &str) -> Self {
        if column == "audio" { Self::Speech } else { Self::Picture }
    }

    /// Returns the ops of a usual pipeline.
    pub(crate) fn default_ops(self) -> &'static str {
        match self {
            Self::Picture => "decode_image,random_resized_crop:224,horizontal_flip",
            Self::Speech => "decode_audio,resample:16000,log_mel:80",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_ops::ChainSpec;

    #[test]
    fn the_usual_ops_are_well_formed() {
        for medium in [Medium::Picture, Medium::Speech] {
            medium.default_ops().parse::<ChainSpec>().unwrap().compile().unwrap();
        }
    }
}
