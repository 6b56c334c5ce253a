//! The sample data has the form of the real layouts.
//!
//! All tests are in one program, because each test program would compile and link the same libraries again.

mod clips;
mod layouts;
mod pictures;
mod speech_layouts;
mod unfinished;
mod written;
