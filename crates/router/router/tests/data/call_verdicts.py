"""Writes call_verdicts.json: schemas of tools, arguments, and which of these PyPI's jsonschema takes.

    pip install jsonschema==4.26.0 && python call_verdicts.py > call_verdicts.json

A test of the router holds its own verdicts against these.
"""
import json
from importlib.metadata import version

from jsonschema import Draft202012Validator

POINT = {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}
SCHEMAS = [
    {"type": "object", "properties": {"city": {"type": "string", "minLength": 2}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"], "additionalProperties": False},
    {"type": "object", "properties": {"unit": {"enum": ["C", "F", None]}, "at": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2}]}}, "$defs": {"point": POINT}},
    {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "minProperties": 1, "not": {"required": ["bad"]}},
    {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}, "list": {"type": "array", "uniqueItems": True, "prefixItems": [{"const": 1}]}}, "dependentRequired": {"code": ["list"]}},
    {"type": "object", "properties": {"n": {"type": "number", "exclusiveMinimum": 0, "maximum": 10, "multipleOf": 0.5}}},
    {"type": "object", "properties": {"n": {"multipleOf": 1}, "list": {"items": {"multipleOf": 0.25}}}},
    {"type": "object", "oneOf": [{"required": ["city"]}, {"required": ["n"]}], "maxProperties": 2},
    {"type": "object", "allOf": [{"required": ["city"]}, {"properties": {"city": {"maxLength": 4}}}]},
    {"type": "object", "if": {"properties": {"unit": {"const": "C"}}, "required": ["unit"]}, "then": {"required": ["n"]}, "else": {"maxProperties": 1}},
    {"type": "object", "properties": {"list": {"type": "array", "contains": {"type": "string"}, "minContains": 1, "maxContains": 2, "minItems": 2}}},
    {"type": "object", "propertyNames": {"maxLength": 4}, "additionalProperties": {"type": ["string", "number", "null"]}},
    {"type": "object", "properties": {"point": POINT, "when": {"type": "string", "format": "date"}}, "required": ["point"]},
    {"type": "object", "properties": {"a": True, "b": False}},
    {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}}},
    {},
]
VALUES = [
    {}, {"city": "Köln"}, {"city": "K"}, {"city": "Ål"}, {"city": 7}, {"city": None}, {"city": "Köln", "days": 0}, {"city": "Köln", "days": 2.0},
    {"city": "Köln", "days": 2.5}, {"city": "Köln", "days": True}, {"city": "Köln", "more": 1}, {"city": "Trondheim"}, {"city": "Rom", "n": 1}, {"unit": "C", "at": 1.5}, {"unit": None},
    {"unit": "K"}, {"unit": "C"}, {"unit": "C", "n": 3}, {"unit": "F", "n": 3}, {"at": [{"x": 1}]}, {"at": [{"y": 1}]}, {"at": [{"x": 1}, {"x": 2}, {"x": 3}]}, {"at": "now"}, {"n_a": 1},
    {"n_a": "1"}, {"n_a": 1.0}, {"bad": 1}, {"code": "AB12", "list": [1, 2]}, {"code": "AB12"}, {"code": "ab", "list": []}, {"list": [2]}, {"list": [1, 1]},
    {"list": [1, True]}, {"list": ["a", 1]}, {"list": ["a", "b", "c"]}, {"list": [[1], [2, 3]]}, {"list": [[1], ["2"]]}, {"n": 0}, {"n": 0.5}, {"n": 10.25}, {"n": 10}, {"n": 1e300}, {"n": 1234567890}, {"n": 1234567890.0}, {"n": 1234567890.5},
    {"n": 1e15 + 0.5}, {"n": -987654321.5}, {"list": [1234567890.25]}, {"list": [1234567890.125]},
    {"n": 3, "days": 1, "city": "Rom"}, {"point": {"x": 1}}, {"point": {"x": "1"}}, {"point": {}}, {"point": {"x": 1}, "when": "soon"}, {"a": 1}, {"b": 1}, {"a": {"b": [{}]}},
]

verdicts = []
for schema in SCHEMAS:
    Draft202012Validator.check_schema(schema)
    verdicts.append("".join("y" if Draft202012Validator(schema).is_valid(value) else "n" for value in VALUES))
parts = [f' "jsonschema": {json.dumps(version("jsonschema"))}']
for name, items in [("schemas", SCHEMAS), ("values", VALUES), ("verdicts", verdicts)]:
    lines = ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in items)
    parts.append(f' "{name}": [\n{lines}\n ]')
print("{\n" + ",\n".join(parts) + "\n}")
