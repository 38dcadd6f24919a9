//! The kinds of JSON schema keywords.

/// The kind of a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyword {
    /// Without effect on validation (annotations, definitions, unknown keywords).
    Annotation,
    /// A constraint that cannot be enforced.
    Unsupported,
    /// A schema.
    Schema,
    /// A schema or, in older drafts, a list of them.
    SchemaOrList,
    /// A list of schemas.
    Schemas,
    /// Schemas by name.
    Named,
    /// `type`.
    Type,
    /// `enum`.
    Enum,
    /// `const`.
    Const,
    /// `$ref`.
    Ref,
    /// `required`.
    Required,
    /// A bound of a number.
    Bound,
    /// A bound of a number or, in draft 4, whether the other bound is exclusive.
    ExclusiveBound,
    /// `multipleOf`.
    MultipleOf,
    /// A length or a count.
    Count,
    /// `pattern`.
    Pattern,
    /// `format`.
    Format,
    /// `uniqueItems`.
    UniqueItems,
    /// `propertyNames`.
    PropertyNames,
    /// `unevaluatedItems`, `unevaluatedProperties`.
    Unevaluated,
}

/// The kind of the keyword `name`.
pub fn keyword(name: &str) -> Keyword {
    match name {
        "not" | "if" | "dependentRequired" | "dependentSchemas" | "dependencies" | "contains"
        | "$dynamicRef" | "$recursiveRef" => Keyword::Unsupported,
        "additionalProperties" | "additionalItems" => Keyword::Schema,
        "items" => Keyword::SchemaOrList,
        "prefixItems" | "allOf" | "anyOf" | "oneOf" => Keyword::Schemas,
        "properties" | "patternProperties" => Keyword::Named,
        "type" => Keyword::Type,
        "enum" => Keyword::Enum,
        "const" => Keyword::Const,
        "$ref" => Keyword::Ref,
        "required" => Keyword::Required,
        "minimum" | "maximum" => Keyword::Bound,
        "exclusiveMinimum" | "exclusiveMaximum" => Keyword::ExclusiveBound,
        "multipleOf" => Keyword::MultipleOf,
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            Keyword::Count
        }
        "pattern" => Keyword::Pattern,
        "format" => Keyword::Format,
        "uniqueItems" => Keyword::UniqueItems,
        "propertyNames" => Keyword::PropertyNames,
        "unevaluatedItems" | "unevaluatedProperties" => Keyword::Unevaluated,
        // Including `then`, `else`, `minContains` and `maxContains`, which have no effect without the keywords refused above.
        _ => Keyword::Annotation,
    }
}

/// The formats that can be enforced.
pub const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
