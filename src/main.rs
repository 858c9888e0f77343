//! A signpost: which face of coracle was asked for?
fn main() {}
