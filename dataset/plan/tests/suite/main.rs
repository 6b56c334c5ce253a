//! The public API of `feedstock-plan`: the guarantees of the order, as properties.

#![expect(clippy::disallowed_types, reason = "the tests measure how time grows with the input")]

mod bucket;
mod joined;
mod mix;
mod order;
mod quality;
mod rest;
mod weights;
