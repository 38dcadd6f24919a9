//! Providers: which address, key and API a model's name stands for, and what is peculiar.

use std::collections::HashMap;

use octet_config::*;

/// Reads an entry; variables are those that are given, besides `..._API_KEY`.
fn entry(params: &str, variables: &[(&str, &str)]) -> Result<Remote, String> {
    let own: HashMap<String, String> =
        variables.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let env = move |name: &str| {
        own.get(name).cloned().or_else(|| (name.ends_with("_API_KEY")).then(|| format!("key-of-{name}")))
    };
    let text = format!("model_list: [{{model_name: m, litellm_params: {params}}}]");
    let config = Config::parse("config.yaml", &text, &Disk(env)).map_err(|e| e.to_string())?;
    match config.deployments.first().map(|d| d.target.clone()) {
        Some(Target::Remote(remote)) => Ok(remote),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn compatible_providers_have_their_address_and_key() {
    for (model, base, name, variable) in [
        ("cohere/command-a", "https://api.cohere.ai/compatibility/v1", "command-a", "COHERE_API_KEY"),
        ("mistral/mistral-large", "https://api.mistral.ai/v1", "mistral-large", "MISTRAL_API_KEY"),
        ("groq/llama-3.3-70b", "https://api.groq.com/openai/v1", "llama-3.3-70b", "GROQ_API_KEY"),
        ("github/gpt-4o", "https://models.github.ai/inference", "gpt-4o", "GITHUB_API_KEY"),
        ("veniceai/x", "https://api.venice.ai/api/v1", "x", "VENICE_AI_API_KEY"),
        (
            "huggingface/together/org/model",
            "https://router.huggingface.co/v1",
            "org/model:together",
            "HUGGINGFACE_API_KEY",
        ),
        ("huggingface/org/model", "https://router.huggingface.co/v1", "org/model", "HUGGINGFACE_API_KEY"),
    ] {
        let r = entry(&format!("{{model: {model}}}"), &[]).unwrap_or_else(|e| panic!("{model}: {e}"));
        let key = r.api_key.as_ref().map(Secret::expose);
        assert_eq!(
            (r.api_base.as_str(), r.model.as_str(), key),
            (base, name, Some(&*format!("key-of-{variable}")))
        );
        assert_eq!((r.provider, &r.auth), (Provider::OpenAiCompatible, &Auth::Key));
    }
}

#[test]
fn addresses_may_contain_variables() {
    let account = [("CLOUDFLARE_ACCOUNT_ID", "abc")];
    let r = entry("{model: 'cloudflare/@cf/meta/llama-3'}", &account).expect("an entry");
    assert_eq!(r.api_base, "https://api.cloudflare.com/client/v4/accounts/abc/ai/v1");
    assert_eq!(r.model, "@cf/meta/llama-3");
    let e = entry("{model: cloudflare/x}", &[]).unwrap_err();
    assert!(e.contains("CLOUDFLARE_ACCOUNT_ID is not set"), "{e}");
}

#[test]
fn quirks_of_providers_are_applied() {
    let r = entry("{model: mistral/x}", &[]).expect("an entry");
    assert_eq!(r.changes.edits.rename, [("max_completion_tokens".to_string(), "max_tokens".to_string())]);
    let r = entry("{model: sarvam/x}", &[]).expect("an entry");
    assert_eq!(r.extra_headers[0].0, "api-subscription-key");
    assert_eq!(r.extra_headers[0].1.expose(), "key-of-SARVAM_API_KEY");
    let responses = |e: Result<Remote, String>| e.expect("an entry").responses;
    assert_eq!(responses(entry("{model: xai/grok-4}", &[])), ResponsesUse::Same);
    // Elsewhere may be anybody.
    let elsewhere = entry("{model: xai/grok-4, api_base: 'http://h/v1'}", &[]);
    assert_eq!(responses(elsewhere), ResponsesUse::None);
}

const KEYS: &str = "aws_access_key_id: AKID, aws_secret_access_key: s";

#[test]
fn models_at_bedrock_have_a_region_and_an_api() {
    use Provider::{Bedrock, BedrockAnthropic};
    let claude = "anthropic.claude-3-5-haiku-20241022-v1:0";
    let profile = "arn:aws:bedrock:eu-west-1:1:application-inference-profile/abc";
    for (model, more, provider, name, region) in [
        (claude, ", aws_region_name: us-east-1", BedrockAnthropic, claude, "us-east-1"),
        (
            "converse/us.anthropic.claude-x",
            ", aws_region_name: us-east-1",
            Bedrock,
            "us.anthropic.claude-x",
            "us-east-1",
        ),
        ("eu-west-3/amazon.nova-lite-v1:0", "", Bedrock, "amazon.nova-lite-v1:0", "eu-west-3"),
        ("amazon.nova-lite-v1:0", "", Bedrock, "amazon.nova-lite-v1:0", "ap-south-1"),
        (&format!("invoke/{profile}"), "", BedrockAnthropic, profile, "eu-west-1"),
    ] {
        let params = format!("{{model: 'bedrock/{model}', {KEYS}{more}}}");
        let r = entry(&params, &[("AWS_REGION", "ap-south-1")]).unwrap_or_else(|e| panic!("{model}: {e}"));
        assert_eq!((r.provider, r.model.as_str()), (provider, name));
        assert_eq!(r.api_base, format!("https://bedrock-runtime.{region}.amazonaws.com"));
        let Auth::Aws(aws) = &r.auth else { panic!("{:?}", r.auth) };
        assert_eq!((aws.region.as_str(), aws.access_key_id.expose()), (region, "AKID"));
    }
    let base = format!(
        "{{model: bedrock/m, aws_region_name: x-y-1, aws_bedrock_runtime_endpoint: 'http://h:1', {KEYS}}}"
    );
    assert_eq!(entry(&base, &[]).expect("an entry").api_base, "http://h:1");
    for (params, variables, why) in [
        (format!("{{model: bedrock/m, {KEYS}}}"), &[][..], "needs aws_region_name"),
        (
            format!("{{model: bedrock/invoke/amazon.x, {KEYS}, aws_region_name: r}}"),
            &[],
            "bedrock/converse/amazon.x",
        ),
        (format!("{{model: bedrock/agent/x, {KEYS}}}"), &[], "'bedrock/agent/' is not supported"),
        ("{model: bedrock/m, aws_region_name: a/b}".into(), &[], "aws_region_name is not a region"),
        (
            "{model: bedrock/m, aws_region_name: r, aws_role_name: x}".into(),
            &[],
            "is not supported: use keys",
        ),
        ("{model: bedrock/m, aws_region_name: r, aws_access_key_id: x}".into(), &[], "are both needed"),
        ("{model: bedrock/m, aws_region_name: r}".into(), &[], "bedrock needs aws_access_key_id"),
    ] {
        let e = entry(&params, variables).unwrap_err();
        assert!(e.contains(why), "{params}: {e}");
    }
}

#[test]
fn keys_of_aws_come_from_the_environment_or_a_profile() {
    let of = |r: Remote| match r.auth {
        Auth::Aws(aws) => {
            (aws.access_key_id.expose().to_string(), aws.session_token.map(|t| t.expose().to_string()))
        }
        other => panic!("{other:?}"),
    };
    let params = "{model: bedrock/m, aws_region_name: r-s-1}";
    let variables = [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "S"), ("AWS_SESSION_TOKEN", "T")];
    assert_eq!(of(entry(params, &variables).expect("an entry")), ("A".into(), Some("T".into())));
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("credentials");
    std::fs::write(&file, "[default]\naws_access_key_id=D\naws_secret_access_key=S\n[two]\naws_access_key_id=W\naws_secret_access_key=S\n").expect("written");
    let variables = [("AWS_SHARED_CREDENTIALS_FILE", file.to_str().expect("a path"))];
    assert_eq!(of(entry(params, &variables).expect("an entry")).0, "D");
    let two = "{model: bedrock/m, aws_region_name: r-s-1, aws_profile_name: two}";
    assert_eq!(of(entry(two, &variables).expect("an entry")).0, "W");
    let r = entry(params, &[("AWS_BEARER_TOKEN_BEDROCK", "B")]).expect("an entry");
    assert_eq!((r.auth, r.api_key.as_ref().map(Secret::expose)), (Auth::Key, Some("B")));
}

#[test]
fn models_at_vertex_have_a_project_and_an_account() {
    let key = r#"{"type": "service_account", "project_id": "own", "client_email": "a@b", "private_key": "-----BEGIN", "token_uri": "http://t/"}"#;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("key.json");
    std::fs::write(&file, key).expect("written");
    let path = file.to_str().expect("a path");
    let by_variable = [("GOOGLE_APPLICATION_CREDENTIALS", path)];
    for (params, base, provider) in [
        (
            format!(
                "{{model: vertex_ai/gemini-2.5-pro, vertex_project: p, vertex_location: europe-west4, vertex_credentials: '{path}'}}"
            ),
            "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4",
            Provider::Vertex,
        ),
        (
            format!(
                "{{model: vertex_ai/claude-sonnet-4-5@20250929, vertex_location: global, vertex_credentials: {key}}}"
            ),
            "https://aiplatform.googleapis.com/v1/projects/own/locations/global",
            Provider::VertexAnthropic,
        ),
        (
            "{model: vertex_ai/gemini-2.5-pro, api_base: 'http://h:1'}".into(),
            "http://h:1/v1/projects/own/locations/us-central1",
            Provider::Vertex,
        ),
        (
            "{model: vertex_ai/gemini-3-flash, vertex_location: eu}".into(),
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/own/locations/eu",
            Provider::Vertex,
        ),
        // An address as far as the model, as LiteLLM takes it; and a model without a provider.
        (
            "{model: gemini-3-flash, api_base: 'http://h:1/v1/projects/p/locations/eu/publishers/google/models/gemini-3-flash'}".into(),
            "http://h:1/v1/projects/p/locations/eu",
            Provider::Vertex,
        ),
        (
            "{model: vertex_ai/meta/llama-4-maverick-17b-128e-instruct-maas, vertex_location: us-east5}".into(),
            "https://us-east5-aiplatform.googleapis.com/v1/projects/own/locations/us-east5/endpoints/openapi",
            Provider::OpenAiCompatible,
        ),
        (
            "{model: vertex_ai/meta/llama-4-scout-maas, api_base: 'http://h:1/v1/projects/p/locations/eu/endpoints/openapi/chat/completions'}".into(),
            "http://h:1/v1/projects/p/locations/eu/endpoints/openapi",
            Provider::OpenAiCompatible,
        ),
        (
            "{model: vertex_ai/meta/llama-4-scout-maas, api_base: 'http://h:1/projects/llm'}".into(),
            "http://h:1/projects/llm/v1/projects/own/locations/us-central1/endpoints/openapi",
            Provider::OpenAiCompatible,
        ),
        (
            "{model: vertex_ai/openai/gpt-oss-120b-maas, vertex_location: global}".into(),
            "https://aiplatform.googleapis.com/v1/projects/own/locations/global/endpoints/openapi",
            Provider::OpenAiCompatible,
        ),
    ] {
        let r = entry(&params, &by_variable).unwrap_or_else(|e| panic!("{params}: {e}"));
        assert_eq!((r.api_base.as_str(), r.provider), (base, provider));
        let Auth::Google(Google::Service { email, token_uri, .. }) = &r.auth else { panic!("{:?}", r.auth) };
        assert_eq!((email.as_str(), token_uri.as_str()), ("a@b", "http://t/"));
        assert!(!format!("{r:?}").contains("BEGIN"), "the key is not printed");
    }
    let r = entry("{model: vertex_ai/gemini-2.5-pro, vertex_project: p}", &[]).expect("an entry");
    assert_eq!(r.auth, Auth::Google(Google::Machine { base: "http://metadata.google.internal".into() }));
    for (params, why) in [
        ("{model: vertex_ai/gemini-2.5-pro}", "needs vertex_project"),
        ("{model: vertex_ai/llama-4, vertex_project: p}", "as PUBLISHER/MODEL, meta, deepseek-ai"),
        ("{model: vertex_ai/mistral-large@2411, vertex_project: p}", "'mistral-large@2411' is not supported"),
        ("{model: vertex_ai/gemini-x, vertex_project: a/b}", "vertex_project is not a valid name"),
        (
            "{model: vertex_ai/gemini-x, vertex_project: p, vertex_credentials: {type: external_account}}",
            "are not supported",
        ),
        (
            "{model: vertex_ai/gemini-x, vertex_project: p, vertex_credentials: /nowhere/key.json}",
            "vertex_credentials: /nowhere",
        ),
    ] {
        let e = entry(params, &[]).unwrap_err();
        assert!(e.contains(why), "{params}: {e}");
    }
}

#[test]
fn azure_is_reached_with_a_key_or_an_application() {
    let no_key = [("AZURE_API_KEY", ""), ("AZURE_OPENAI_API_KEY", "")];
    let with = |more: &str| format!("{{model: azure/gpt-4o, api_base: 'https://me.openai.azure.com'{more}}}");
    let application = ", tenant_id: tn, client_id: app, client_secret: s3cret";
    let r = entry(&with(application), &no_key).expect("an entry");
    let Auth::Entra(entra) = &r.auth else { panic!("{:?}", r.auth) };
    assert_eq!(entra.token_uri, "https://login.microsoftonline.com/tn/oauth2/v2.0/token");
    assert_eq!((entra.client_id.as_str(), entra.client_secret.expose()), ("app", "s3cret"));
    assert_eq!(entra.scope, "https://cognitiveservices.azure.com/.default");
    assert!(!format!("{r:?}").contains("s3cret"), "the secret is not printed");
    let variables = [
        ("AZURE_TENANT_ID", "tn"),
        ("AZURE_CLIENT_ID", "app"),
        ("AZURE_CLIENT_SECRET", "s3cret"),
        ("AZURE_AUTHORITY_HOST", "login.microsoftonline.us"),
        no_key[0],
        no_key[1],
    ];
    let r = entry(&with(""), &variables).expect("an entry");
    let Auth::Entra(entra) = &r.auth else { panic!("{:?}", r.auth) };
    assert_eq!(entra.token_uri, "https://login.microsoftonline.us/tn/oauth2/v2.0/token");
    // A key is used where there is one.
    assert_eq!(entry(&with(&format!("{application}, api_key: k")), &[]).expect("an entry").auth, Auth::Key);
    // If no version is set, it depends on the operation.
    for (variable, version) in [("", None), ("2025-01-01-preview", Some("2025-01-01-preview"))] {
        let variables = [("AZURE_API_KEY", "k"), ("AZURE_API_VERSION", variable)];
        assert_eq!(entry(&with(""), &variables).expect("an entry").api_version.as_deref(), version);
    }
    for (params, why) in [
        ("", "AZURE_API_KEY"),
        (", tenant_id: tn", "an Entra ID token needs all of"),
        (", tenant_id: 'a/b', client_id: app, client_secret: s", "neither an id nor a domain"),
    ] {
        let e = entry(&with(params), &no_key).unwrap_err();
        assert!(e.contains(why), "{params}: {e}");
    }
}

/// The names of OpenAI-compatible providers that LiteLLM 1.106 knows.
const LITELLMS: &str = "abliteration ai21 ai21_chat aihubmix aiml amazon_nova anyscale apertis assemblyai azure_ai baseten \
    cerebras charity_engine chatgpt chutes clarifai cloudflare codestral cognition cohere cohere_chat \
    cometapi compactifai cortecs crusoe darkbloom dashscope databricks deepinfra deepseek \
    docker_model_runner edenai empiriolabs empower featherless_ai fireworks_ai friendliai galadriel \
    github github_copilot gmi gradient_ai groq helicone hosted_vllm huggingface hyperbolic inception \
    jina_ai lambda_ai lemonade libertai litellm_proxy llamafile llamagate lm_studio meta meta_llama \
    minimax mistral modelscope moonshot morph nano-gpt nebius neosantara novita nscale nvidia_nim \
    openrouter ovhcloud parasail perplexity pinstripes poe prism publicai qwen_ai_platform qwencloud \
    ragflow reka sail sambanova sarvam scaleway scx-ai synthetic tencent tensormesh together_ai v0 \
    veniceai vercel_ai_gateway volcengine voyage wandb xai xiaomi_mimo xinference zai";
/// Those of them that want a login in place of a key.
const NOT_HERE: [&str; 2] = ["chatgpt", "github_copilot"];

#[test]
fn every_compatible_provider_of_litellms_is_known() {
    let account = [("CLOUDFLARE_ACCOUNT_ID", "abc")];
    for name in LITELLMS.split(' ') {
        let read = entry(&format!("{{model: {name}/m}}"), &account);
        let read = read.or_else(|_| entry(&format!("{{model: {name}/m, api_base: 'http://h/v1'}}"), &[]));
        assert_eq!(read.is_ok(), !NOT_HERE.contains(&name), "{name}: {read:?}");
    }
}
