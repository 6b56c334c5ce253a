//! Layouts read in place. (Door; to be filled.)
pub enum Layout {}
