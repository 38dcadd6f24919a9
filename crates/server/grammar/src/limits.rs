//! Bounds on what a request may bring, and on the work that it may cause. Used by all of this crate.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Longest regular expression or pattern, in bytes.
pub const REGEX_BYTES_MAX: usize = 16 << 10;
/// Longest grammar, in bytes.
pub const LARK_BYTES_MAX: usize = 64 << 10;
/// Most conjunctions in a grammar's terminals: what several regexes match at once takes time in their product.
pub const LARK_ANDS_MAX: usize = 8;
/// Most choices, and their bytes in all.
pub const CHOICES_MAX: usize = 10_000;
/// See [`CHOICES_MAX`].
pub const CHOICE_BYTES_MAX: usize = 512 << 10;
/// Most tools.
pub const TOOLS_MAX: usize = 512;

/// Deepest nesting of schemas.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Most schemas within a schema, references resolved once.
pub const SCHEMAS_MAX: usize = 10_000;
/// Most schemas that references may point to.
pub const DEFINITIONS_MAX: usize = 2_000;
/// Most properties of one object.
pub const PROPERTIES_MAX: usize = 1_000;
/// Most patterns for the names of one object's properties: each is compared with each.
pub const PATTERN_PROPERTIES_MAX: usize = 16;
/// Most values in all `enum`s, and their bytes.
pub const ENUM_VALUES_MAX: usize = 10_000;
/// See [`ENUM_VALUES_MAX`].
pub const ENUM_BYTES_MAX: usize = 512 << 10;
/// Most alternatives of a `oneOf`: each is compared with each.
pub const ONE_OF_MAX: usize = 256;
/// Most patterns, formats and lengths that one string has to meet: what they match together takes time in their product.
pub const STRING_RULES_MAX: u64 = 4;
/// Most digits behind the point of a `multipleOf`.
pub const MULTIPLE_DIGITS_MAX: u32 = 8;
/// Largest `multipleOf`, and least common multiple of all of a schema, without its point: each remainder is a state.
pub const MULTIPLE_MAX: u32 = 100_000;
/// Largest schema once what references and alternatives multiply is written out.
pub const EXPANDED_MAX: u64 = 50_000;

/// Longest compilation. The bounds above keep it far below; this is for what they miss.
pub const COMPILE_TIME_MAX: Duration = Duration::from_secs(5);
/// Most compilations at a time, for one vocabulary.
pub const COMPILING_MAX: usize = 8;
/// Stack for a compilation, which recurses as deep as grammars and chains of references go. Untouched pages cost nothing.
pub const COMPILE_STACK_BYTES: usize = 128 << 20;
/// Longest computation of one mask. Common ones take well under a millisecond.
pub const STEP_TIME_MAX: Duration = Duration::from_millis(500);

/// The bounds that llguidance keeps.
pub fn parser() -> ParserLimits {
    ParserLimits {
        // One to two kilobytes each.
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}
