//! Many small objects on one node, while a home of their keys dies and comes back empty, or while most of them are removed.

pub mod load;
pub mod remove_prefix;
pub mod run;
