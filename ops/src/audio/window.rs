//! Windows of the short-time Fourier transform.

use std::f64::consts::{PI, TAU};

use serde::{Deserialize, Serialize};

use super::parameters::single;

/// What a frame is multiplied by before its Fourier transform.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Window {
    /// 0.5 − 0.5 cos(2πn/N), periodic: `torch.hann_window`.
    #[default]
    Hann,
    /// 0.54 − 0.46 cos(2πn/N), periodic: `torch.hamming_window`.
    Hamming,
    /// 0.42 − 0.5 cos(2πn/N) + 0.08 cos(4πn/N), periodic: `torch.blackman_window`.
    Blackman,
    /// (0.5 − 0.5 cos(2πn/(N−1)))^0.85, symmetric: Kaldi's.
    Povey,
    /// 1.
    Rectangular,
}

impl Window {
    /// `win_length` values in the middle of `n_fft` (at least as many), zeros around them.
    pub(crate) fn values(self, win_length: usize, n_fft: usize) -> Vec<f32> {
        let periodic = |n: usize| TAU * n as f64 / win_length as f64;
        let value = |n: usize| match self {
            Self::Hann => 0.5 - 0.5 * libm::cos(periodic(n)),
            Self::Hamming => 0.54 - 0.46 * libm::cos(periodic(n)),
            Self::Blackman => 0.42 - 0.5 * libm::cos(periodic(n)) + 0.08 * libm::cos(2.0 * periodic(n)),
            Self::Povey => {
                let last = (win_length.max(2) - 1) as f64;
                let half = libm::sin(PI * n as f64 / last);
                libm::pow((half * half).max(0.0), 0.85)
            }
            Self::Rectangular => 1.0,
        };
        let mut values = vec![0.0; n_fft];
        let start = (n_fft - win_length) / 2;
        for (n, x) in values[start..start + win_length].iter_mut().enumerate() {
            *x = single(value(n));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_torch_and_kaldi() {
        // torch.hann_window(5), hamming_window(5), blackman_window(5); Povey from Kaldi's formula, N = 5.
        let near = |window: Window, expected: [f32; 5]| {
            let values = window.values(5, 8);
            assert_eq!((values[0], values[6], values[7]), (0.0, 0.0, 0.0));
            assert!(values[1..6].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{values:?}");
        };
        near(Window::Hann, [0.0, 0.345_491_5, 0.904_508_5, 0.904_508_5, 0.345_491_5]);
        near(Window::Hamming, [0.08, 0.397_852_2, 0.912_147_8, 0.912_147_8, 0.397_852_2]);
        near(Window::Blackman, [0.0, 0.200_770_14, 0.849_229_9, 0.849_229_9, 0.200_770_14]);
        near(Window::Povey, [0.0, 0.554_784_7, 1.0, 0.554_784_7, 0.0]);
        near(Window::Rectangular, [1.0; 5]);
    }
}
