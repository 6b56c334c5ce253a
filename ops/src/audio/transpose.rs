//! Transposes frames of features to features over frames.

/// The frames whose features are moved together: a cache line of the result.
const TILE: usize = 16;

/// Writes frames of `width` features into `out`, feature by feature.
pub(crate) fn transpose(features: &[f32], width: usize, out: &mut [f32]) {
    let frames = features.len() / width;
    for start in (0..frames).step_by(TILE) {
        let end = (start + TILE).min(frames);
        for feature in 0..width {
            for frame in start..end {
                out[feature * frames + frame] = features[frame * width + feature];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        let (frames, width) = (37, 5);
        let features: Vec<f32> = (0..frames * width).map(|i| i as f32).collect();
        let mut out = vec![-1.0; features.len()];
        transpose(&features, width, &mut out);
        for (t, f) in (0..frames).flat_map(|t| (0..width).map(move |f| (t, f))) {
            assert_eq!(out[f * frames + t], features[t * width + f]);
        }
    }
}
