//! Clouds that host other makers' models: Amazon Bedrock, Google Vertex AI and Azure. A model's address and API there, and the
//! authentication of requests.

use serde_json::Value as Json;

use crate::fields::Fields;
use crate::reader::Reader;
use crate::{Auth, Aws, Entra, Google, Provider, Secret};

/// Maximum size of a credentials file.
const FILE_BYTES_MAX: u64 = 64 << 10;
const GOOGLE_TOKENS: &str = "https://oauth2.googleapis.com/token";
/// Entra ID's address, and the scope of its tokens.
const ENTRA: &str = "https://login.microsoftonline.com";
const ENTRA_SCOPE: &str = "https://cognitiveservices.azure.com/.default";
const GOOGLE_METADATA: &str = "http://metadata.google.internal";

/// Keys for Bedrock alone,
const OF_BEDROCK: &[&str] = &[
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region_name",
    "aws_profile_name",
    "aws_bedrock_runtime_endpoint",
    "aws_role_name",
    "aws_web_identity_token",
];
/// and for Vertex AI alone.
const OF_VERTEX: &[&str] = &["vertex_project", "vertex_location", "vertex_credentials"];
/// and for Azure alone.
const OF_AZURE: &[&str] = &["tenant_id", "client_id", "client_secret", "azure_scope"];

/// The address and API of a model.
pub(crate) struct Route {
    pub provider: Provider,
    /// The model's name there.
    pub model: String,
    /// The region in the provider's address.
    pub region: Option<String>,
    /// An address from a key of this cloud.
    pub base: Option<String>,
    /// The path after the address.
    pub path: String,
}

/// Finds it. The error is why the entry cannot be served.
pub(crate) fn route(params: &Fields, provider: Provider, prefix: &str, model: &str) -> Result<Route, String> {
    let clouds = [
        ("Bedrock", OF_BEDROCK, Provider::Bedrock),
        ("Vertex AI", OF_VERTEX, Provider::Vertex),
        ("Azure", OF_AZURE, Provider::AzureOpenAi),
    ];
    for (cloud, keys, of) in clouds {
        for name in keys.iter().filter(|_| of != provider) {
            if let Some(node) = params.get(name) {
                params.reader.note(
                    &node.span,
                    format!("litellm_params.{name}"),
                    format!("ignored: it is for models at {cloud}"),
                );
            }
        }
    }
    match provider {
        Provider::Bedrock => bedrock(params, prefix, model),
        Provider::Vertex => vertex(params, model),
        _ => Ok(Route { provider, model: model.into(), region: None, base: None, path: String::new() }),
    }
}

/// `bedrock/[converse/|invoke/][REGION/]MODEL`.
fn bedrock(params: &Fields, prefix: &str, model: &str) -> Result<Route, String> {
    let reader = params.reader;
    let mut name = model;
    let mut api = (prefix == "bedrock_converse").then_some(Provider::Bedrock);
    let mut region = None;
    // An ARN may contain slashes.
    while let Some((word, rest)) = name.split_once('/').filter(|_| !name.starts_with("arn:")) {
        match word {
            "converse" => api = Some(Provider::Bedrock),
            "invoke" => api = Some(Provider::BedrockAnthropic),
            _ if is_region(word) => region = Some(word.to_string()),
            _ => {
                return Err(format!(
                    "'bedrock/{word}/' is not supported: use bedrock/MODEL, bedrock/converse/MODEL or bedrock/invoke/MODEL"
                ));
            }
        }
        name = rest;
    }
    let is_claude = name.contains("anthropic.");
    let provider = api.unwrap_or(if is_claude { Provider::BedrockAnthropic } else { Provider::Bedrock });
    if provider == Provider::BedrockAnthropic && !is_claude && !name.starts_with("arn:") {
        return Err(format!("bedrock/invoke/ supports only Anthropic's models: use bedrock/converse/{name}"));
    }
    let variables = ["AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION"];
    let own = params.name("aws_region_name");
    let in_arn = name.strip_prefix("arn:aws:bedrock:").and_then(|r| r.split(':').next()).map(String::from);
    let region = own.or(region).or(in_arn).or_else(|| variables.iter().find_map(|v| reader.variable(v)));
    let Some(region) = region else {
        return Err(format!("bedrock/{name} needs aws_region_name (or set AWS_REGION)"));
    };
    if !is_name(&region) {
        return Err("aws_region_name is not a region like us-east-1".into());
    }
    let base = params.name("aws_bedrock_runtime_endpoint");
    Ok(Route { provider, model: name.into(), region: Some(region), base, path: String::new() })
}

/// `us-east-1`, `us-gov-west-1`.
fn is_region(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    parts.len() >= 3
        && parts[0].len() == 2
        && parts.last().is_some_and(|n| n.len() == 1 && n.bytes().all(|b| b.is_ascii_digit()))
}

/// A word that is valid in a host name or a path.
fn is_name(word: &str) -> bool {
    !word.is_empty()
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':' | b'_'))
}

fn vertex(params: &Fields, model: &str) -> Result<Route, String> {
    let reader = params.reader;
    let first = |key: &'static str, variables: &[&str]| {
        params.name(key).or_else(|| variables.iter().find_map(|v| reader.variable(v)))
    };
    let location = first("vertex_location", &["VERTEXAI_LOCATION", "VERTEX_LOCATION"]);
    let location = location.unwrap_or_else(|| "us-central1".into());
    let variables = ["VERTEXAI_PROJECT", "VERTEX_PROJECT", "GOOGLE_CLOUD_PROJECT"];
    let project = first("vertex_project", &variables);
    let project =
        project.or_else(|| credentials(params).ok()??.get("project_id")?.as_str().map(String::from));
    let Some(project) = project else {
        return Err(format!("vertex_ai/{model} needs vertex_project (or set VERTEXAI_PROJECT)"));
    };
    for (key, value) in [("vertex_location", &location), ("vertex_project", &project)] {
        if !is_name(value) {
            return Err(format!("{key} is not a valid name: use letters, digits and -.:_"));
        }
    }
    let model = model.strip_prefix("gemini/").unwrap_or(model);
    let mut path = format!("/v1/projects/{project}/locations/{location}");
    let publisher = model.split_once('/').map(|(publisher, _)| publisher);
    let provider = if publisher.is_some_and(|p| OPEN_PUBLISHERS.contains(&p)) {
        path += "/endpoints/openapi";
        Provider::OpenAiCompatible
    } else if model.starts_with("claude") {
        Provider::VertexAnthropic
    } else if model.starts_with("gemini") || model.contains("embedding") || model.contains('*') {
        Provider::Vertex
    } else {
        return Err(format!(
            "'{model}' is not supported: Vertex AI's models are supported by Google, Anthropic and, as PUBLISHER/MODEL, {}",
            OPEN_PUBLISHERS.join(", ")
        ));
    };
    // Locations of several regions have hosts of their own.
    let base = matches!(location.as_str(), "eu" | "us")
        .then(|| format!("https://aiplatform.{location}.rep.googleapis.com"));
    let region = if location == "global" { String::new() } else { format!("{location}-") };
    Ok(Route { provider, model: model.into(), region: Some(region), base, path })
}

/// Publishers whose models Vertex AI offers as a service with OpenAI's API, at `endpoints/openapi/chat/completions`. Source:
/// https://cloud.google.com/vertex-ai/generative-ai/docs/maas/call-open-model-apis (2026-11).
const OPEN_PUBLISHERS: &[&str] =
    &["meta", "deepseek-ai", "qwen", "openai", "moonshotai", "minimaxai", "zai-org", "google"];

/// The authentication of requests. The error is what is missing.
pub(crate) fn auth(
    params: &Fields,
    provider: Provider,
    region: Option<String>,
    has_key: bool,
) -> Result<Auth, String> {
    match provider {
        Provider::Bedrock | Provider::BedrockAnthropic if has_key && !params.has("aws_access_key_id") => {
            Ok(Auth::Key)
        }
        Provider::Bedrock | Provider::BedrockAnthropic => {
            aws(params, region.unwrap_or_default()).map(Auth::Aws)
        }
        Provider::Vertex | Provider::VertexAnthropic => google(params).map(Auth::Google),
        Provider::AzureOpenAi if !has_key => Ok(entra(params)?.map_or(Auth::Key, Auth::Entra)),
        _ => Ok(Auth::Key),
    }
}

/// The application whose tokens replace a key at Azure: `tenant_id`, `client_id` and `client_secret`, or the variables of Azure's
/// libraries.
pub(crate) fn entra(params: &Fields) -> Result<Option<Entra>, String> {
    let reader = params.reader;
    let first = |key: &'static str, variable: &str| params.name(key).or_else(|| reader.variable(variable));
    let tenant = first("tenant_id", "AZURE_TENANT_ID");
    let client = first("client_id", "AZURE_CLIENT_ID");
    let variable = || Secret::new(&reader.variable("AZURE_CLIENT_SECRET")?);
    let secret = params.secret("client_secret").or_else(variable);
    let (Some(tenant), Some(client_id), Some(client_secret)) = (tenant, client, secret) else {
        let some = ["tenant_id", "client_id", "client_secret"].into_iter().any(|key| params.has(key));
        return if some {
            Err("an Entra ID token needs all of tenant_id, client_id and client_secret".into())
        } else {
            Ok(None)
        };
    };
    if !is_name(&tenant) {
        return Err("tenant_id is neither an id nor a domain".into());
    }
    let authority = reader.variable("AZURE_AUTHORITY_HOST").unwrap_or_else(|| ENTRA.into());
    let authority = if authority.contains("://") { authority } else { format!("https://{authority}") };
    let token_uri = format!("{}/{tenant}/oauth2/v2.0/token", authority.trim_end_matches('/'));
    let scope = first("azure_scope", "AZURE_SCOPE").unwrap_or_else(|| ENTRA_SCOPE.into());
    Ok(Some(Entra { token_uri, client_id, client_secret, scope }))
}

fn aws(params: &Fields, region: String) -> Result<Aws, String> {
    let reader = params.reader;
    for key in ["aws_role_name", "aws_web_identity_token"] {
        if params.has(key) {
            return Err(format!("{key} is not supported: use keys, or a profile with keys"));
        }
    }
    let own = (params.has("aws_access_key_id"), params.has("aws_secret_access_key"));
    if own != (false, false) {
        let id = params.secret("aws_access_key_id");
        let (Some(access_key_id), Some(secret_access_key)) = (id, params.secret("aws_secret_access_key"))
        else {
            return Err("aws_access_key_id and aws_secret_access_key are both needed".into());
        };
        let session_token = params.secret("aws_session_token");
        return Ok(Aws { region, access_key_id, secret_access_key, session_token });
    }
    let variable = |name: &str| Secret::new(&reader.variable(name)?);
    let profile = params.name("aws_profile_name");
    if profile.is_none()
        && let (Some(id), Some(key)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"))
    {
        let session_token = variable("AWS_SESSION_TOKEN");
        return Ok(Aws { region, access_key_id: id, secret_access_key: key, session_token });
    }
    let profile = profile.or_else(|| reader.variable("AWS_PROFILE")).unwrap_or_else(|| "default".into());
    let missing = || {
        "bedrock needs aws_access_key_id and aws_secret_access_key (or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
         AWS_BEARER_TOKEN_BEDROCK, or a profile with keys)"
            .to_string()
    };
    let home = || Some(format!("{}/.aws/credentials", reader.variable("HOME")?));
    let file = reader.variable("AWS_SHARED_CREDENTIALS_FILE").or_else(home).ok_or_else(missing)?;
    let text = reader.read(file.as_ref(), FILE_BYTES_MAX).map_err(|_| missing())?;
    let value = |name: &str| Secret::new(&in_profile(&text, &profile, name)?);
    match (value("aws_access_key_id"), value("aws_secret_access_key")) {
        (Some(access_key_id), Some(secret_access_key)) => {
            Ok(Aws { region, access_key_id, secret_access_key, session_token: value("aws_session_token") })
        }
        _ => Err(format!("the profile '{profile}' of {file} has no keys")),
    }
}

/// A value of a profile in AWS' credentials file.
fn in_profile(text: &str, profile: &str, name: &str) -> Option<String> {
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            inside = section.trim() == profile;
        } else if let Some((key, value)) =
            line.split_once('=').filter(|(key, _)| inside && key.trim() == name)
        {
            let _ = key;
            return Some(value.trim().to_string());
        }
    }
    None
}

/// The JSON of `vertex_credentials` (a path, the text itself or a mapping), or of the file that a variable names.
fn credentials(params: &Fields) -> Result<Option<Json>, String> {
    let reader = params.reader;
    if let Some(node) =
        params.get("vertex_credentials").filter(|n| matches!(n.value, crate::yaml::Value::Map(_)))
    {
        return Ok(Some(reader.json(node)));
    }
    let own = params.name("vertex_credentials");
    let variables = ["VERTEXAI_CREDENTIALS", "VERTEX_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS"];
    let Some(text) = own.or_else(|| variables.iter().find_map(|v| reader.variable(v))) else {
        return Ok(None);
    };
    let text = if text.trim_start().starts_with('{') { text } else { read(reader, params, &text)? };
    let json = serde_json::from_str(&text)
        .map_err(|_| "vertex_credentials is not JSON: use a service account's key file")?;
    Ok(Some(json))
}

fn read(reader: &Reader, params: &Fields, path: &str) -> Result<String, String> {
    let path = path.strip_prefix("file:").unwrap_or(path);
    reader
        .read(&reader.path(params.span, path), FILE_BYTES_MAX)
        .map_err(|e| format!("vertex_credentials: {path}: {e}"))
}

fn google(params: &Fields) -> Result<Google, String> {
    let Some(json) = credentials(params)? else {
        let host = params.reader.variable("GCE_METADATA_HOST");
        let base = host.map_or_else(|| GOOGLE_METADATA.to_string(), |h| format!("http://{h}"));
        return Ok(Google::Machine { base });
    };
    let text = |name: &str| json.get(name).and_then(Json::as_str).map(String::from);
    let needed = |name: &str| text(name).ok_or_else(|| format!("vertex_credentials has no {name}"));
    let secret = |name: &str| {
        Secret::new(&needed(name)?).ok_or_else(|| format!("{name} of vertex_credentials is empty"))
    };
    let token_uri = text("token_uri").unwrap_or_else(|| GOOGLE_TOKENS.into());
    match text("type").as_deref() {
        Some("service_account") => Ok(Google::Service {
            email: needed("client_email")?,
            private_key: secret("private_key")?,
            key_id: text("private_key_id"),
            token_uri,
        }),
        Some("authorized_user") => Ok(Google::User {
            client_id: needed("client_id")?,
            client_secret: secret("client_secret")?,
            refresh_token: secret("refresh_token")?,
            token_uri,
        }),
        other => Err(format!(
            "vertex_credentials of the type '{}' are not supported: use a service account's key",
            other.unwrap_or("unknown")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read() {
        let text =
            "[default]\naws_access_key_id = a\n\n[two]\naws_access_key_id=b\naws_secret_access_key = c=d\n";
        assert_eq!(in_profile(text, "default", "aws_access_key_id").as_deref(), Some("a"));
        assert_eq!(in_profile(text, "two", "aws_secret_access_key").as_deref(), Some("c=d"));
        assert_eq!(in_profile(text, "default", "aws_secret_access_key"), None);
    }

    #[test]
    fn regions_are_told_from_models() {
        assert!(is_region("us-east-1") && is_region("us-gov-west-1"));
        assert!(!is_region("anthropic.claude-3-haiku-20240307-v1:0") && !is_region("meta-llama-3"));
    }
}
