//! Lists and descriptions say which models see images: by the table of families, or as `model_info` says.

use serde_json::{Value, json};

use super::common::Fixture;
use super::common::upstream::Upstream;

#[tokio::test(flavor = "multi_thread")]
async fn lists_say_which_models_see() {
    let up = Upstream::saying("Hi").await;
    let base = &up.base;
    let f = Fixture::routed(&format!(
        "model_list:
- {{model_name: known, litellm_params: {{model: openai/gpt-4o, api_base: \"{base}/v1\", api_key: k}}}}
- {{model_name: said, litellm_params: {{model: hosted_vllm/x, api_base: \"{base}/v1\"}}, model_info: {{supports_vision: true}}}}
- {{model_name: denied, litellm_params: {{model: openai/gpt-4o, api_base: \"{base}/v1\", api_key: k}}, model_info: {{supports_vision: false}}}}
- {{model_name: unknown, litellm_params: {{model: hosted_vllm/y, api_base: \"{base}/v1\"}}}}
"
    ))
    .await;
    let (_, list) = f.get("/v1/models").await;
    let (_, tags) = f.get("/api/tags").await;
    let (_, info) = f.get("/v1/model/info").await;
    for (i, (name, sees)) in
        [("known", true), ("said", true), ("denied", false), ("unknown", false)].into_iter().enumerate()
    {
        let model = &list["data"][i];
        assert_eq!((&model["id"], &model["capabilities"]["vision"]), (&json!(name), &json!(sees)), "{model}");
        let inputs = if sees { json!(["text", "image"]) } else { json!(["text"]) };
        assert_eq!(model["architecture"]["input_modalities"], inputs, "{name}");
        let show = f.ok("/api/show", &json!({"model": name})).await;
        for described in [&show, &tags["models"][i]] {
            let has = described["capabilities"].as_array().unwrap().contains(&json!("vision"));
            assert_eq!(has, sees, "{name}: {described}");
        }
        let shown = &info["data"][i]["model_info"]["supports_vision"];
        assert_eq!(shown.as_bool().unwrap_or(false), sees, "{name}");
    }
    // A model in this process that has no tower.
    let local = Fixture::start().await;
    let (_, list) = local.get("/v1/models").await;
    assert_eq!(list["data"][0]["capabilities"]["vision"], false);
    let (_, props) = local.get("/props").await;
    assert_eq!((&props["modalities"]["vision"], &props["media_marker"]), (&json!(false), &Value::Null));
}
