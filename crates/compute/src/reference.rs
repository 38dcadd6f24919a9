//! The scalar oracle.
