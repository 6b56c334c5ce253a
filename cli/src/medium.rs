//! What the encoded samples of a data set are, told by their column's name.

/// Pictures or speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    Picture,
    Speech,
}

impl Medium {
    /// Every layout of clips calls their column `audio`.
    pub(crate) fn of(column: &str) -> Self {
        if column == "audio" { Self::Speech } else { Self::Picture }
    }

    /// The ops of a usual pipeline.
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
