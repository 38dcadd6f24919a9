//! Limits on constraints in requests, and on the work that they may cause.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Maximum length of a regular expression or pattern in bytes.
pub const REGEX_BYTES_MAX: usize = 16 << 10;
/// Maximum length of a regular expression with its classes written out, as anchors are removed from it.
pub const PRINTED_BYTES_MAX: usize = 256 << 10;
/// The same for all patterns of a schema.
pub const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a grammar in bytes.
pub const LARK_BYTES_MAX: usize = 64 << 10;
/// Maximum number of conjunctions in a grammar's terminals: intersecting regexes multiplies their sizes.
pub const LARK_ANDS_MAX: usize = 8;
/// Maximum number of choices, and of their bytes in total.
pub const CHOICES_MAX: usize = 10_000;
/// See [`CHOICES_MAX`].
pub const CHOICE_BYTES_MAX: usize = 512 << 10;
/// Maximum number of tools.
pub const TOOLS_MAX: usize = 512;

/// Maximum nesting of schemas.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Maximum number of schemas within a schema, with references resolved once.
pub const SCHEMAS_MAX: usize = 10_000;
/// Maximum number of schemas that references point to.
pub const DEFINITIONS_MAX: usize = 2_000;
/// Maximum number of properties of an object.
pub const PROPERTIES_MAX: usize = 1_000;
/// Maximum number of pattern properties of an object: all pairs are compared.
pub const PATTERN_PROPERTIES_MAX: usize = 16;
/// Maximum number of `enum` values, and of their bytes in total.
pub const ENUM_VALUES_MAX: usize = 10_000;
/// See [`ENUM_VALUES_MAX`].
pub const ENUM_BYTES_MAX: usize = 512 << 10;
/// Maximum number of alternatives of a `oneOf`: all pairs are compared.
pub const ONE_OF_MAX: usize = 256;
/// Maximum number of patterns, formats and lengths of one string: intersecting them multiplies their sizes.
pub const STRING_RULES_MAX: u64 = 4;
/// Maximum number of decimals of a `multipleOf`.
pub const MULTIPLE_DIGITS_MAX: u32 = 8;
/// Maximum of a `multipleOf`, and of the least common multiple of all in a schema, without the decimal point: each remainder is a
/// state.
pub const MULTIPLE_MAX: u32 = 100_000;
/// Maximum size of a schema with references and alternatives expanded.
pub const EXPANDED_MAX: u64 = 50_000;

/// Time limit of a compilation, for cases that the limits above miss.
pub const COMPILE_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of concurrent compilations per vocabulary.
pub const COMPILING_MAX: usize = 8;
/// Stack of a compilation, which recurses with the depth of grammars and chains of references. Untouched pages use no memory.
pub const COMPILE_STACK_BYTES: usize = 128 << 20;
/// Time limit of one mask. Common ones take well under a millisecond.
pub const STEP_TIME_MAX: Duration = Duration::from_millis(500);

/// llguidance's own limits.
pub fn parser() -> ParserLimits {
    ParserLimits {
        // One to two kilobytes each.
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}
