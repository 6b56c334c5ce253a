//! What is made is what the real layouts hold.
//!
//! One program, since each would compile and link the same libraries anew.

mod clips;
mod layouts;
mod pictures;
mod speech_layouts;
mod unfinished;
mod written;
