//! Calls of tools against schemas: the verdicts are those of PyPI's jsonschema (`tests/data/call_verdicts.py` writes them).

use octet_api::core::{Tool, ToolOrigin};
use octet_router::calls::broken;
use serde_json::Value;

#[test]
fn verdicts_agree_with_pythons_jsonschema() {
    let table: Value = serde_json::from_str(include_str!("../data/call_verdicts.json")).unwrap();
    let list = |name: &str| table[name].as_array().unwrap().clone();
    let (schemas, values, verdicts) = (list("schemas"), list("values"), list("verdicts"));
    let (mut fits, mut breaks) = (0, 0);
    for (schema, verdicts) in schemas.iter().zip(&verdicts) {
        let tool = Tool {
            name: "f".into(),
            description: None,
            parameters: schema.as_object().unwrap().clone(),
            strict: None,
            cache: None,
            origin: ToolOrigin::default(),
        };
        let verdicts = verdicts.as_str().unwrap();
        assert_eq!(verdicts.len(), values.len());
        for (value, theirs) in values.iter().zip(verdicts.chars()) {
            let ours = broken(&tool, &value.to_string());
            assert_eq!(ours.is_none(), theirs == 'y', "{value} against {schema}: {ours:?}");
            *if theirs == 'y' { &mut fits } else { &mut breaks } += 1;
        }
    }
    assert!(fits > 300 && breaks > 150, "{fits} fit, {breaks} do not");
}
