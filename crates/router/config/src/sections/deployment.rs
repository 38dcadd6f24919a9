//! The keys of `model_list`: LiteLLM's, and those of models that run in this process.

use crate::keys::{Key, Kind, Section, key};

/// An entry of `model_list`.
pub static MODEL: Section = Section {
    name: "model_list",
    doc: "a deployment",
    keys: &[
        key("model_name", Kind::Text, "what clients ask for; * stands for any text").guard(),
        key("litellm_params", Kind::Section(&PARAMS), "who answers, and how").guard(),
        key("model_info", Kind::Section(&MODEL_INFO), "what is known about the model").guard(),
    ],
    warned: &[(&["tpm", "rpm"], "it counts under litellm_params")],
    refused: &[],
    open: false,
};

const KV: Kind = Kind::OneOf(&["f16", "f32", "q8_0"]);

/// `litellm_params`.
pub static PARAMS: Section = Section {
    name: "litellm_params",
    doc: "who answers, and how",
    keys: &[
        key(
            "model",
            Kind::Text,
            "provider/model; octet/PATH-or-name runs it here, process/ID starts a server",
        ),
        key("api_base", Kind::Text, "where the API begins").guard().or(&["base_url"]),
        key("api_key", Kind::Secret, "the key; without one the provider's variable counts").guard(),
        key("api_version", Kind::Text, "Azure's"),
        key("organization", Kind::Text, "OpenAI's"),
        key("aws_access_key_id", Kind::Secret, "of Bedrock; without it AWS_ACCESS_KEY_ID, then the profile")
            .guard(),
        key("aws_secret_access_key", Kind::Secret, "of Bedrock").guard(),
        key("aws_session_token", Kind::Secret, "of Bedrock, for temporary keys").guard(),
        key("aws_region_name", Kind::Text, "of Bedrock; without it AWS_REGION"),
        key("aws_profile_name", Kind::Text, "of Bedrock: a profile in ~/.aws/credentials"),
        key("aws_bedrock_runtime_endpoint", Kind::Text, "of Bedrock: where its API begins").guard(),
        key("aws_role_name", Kind::Text, "roles are not assumed here: the entry is left out").guard(),
        key("aws_web_identity_token", Kind::Text, "roles are not assumed here: the entry is left out")
            .guard(),
        key("vertex_project", Kind::Text, "of Vertex AI; without it the credentials' own")
            .or(&["vertex_ai_project"]),
        key("vertex_location", Kind::Text, "of Vertex AI; us-central1 without it")
            .or(&["vertex_ai_location"]),
        key("vertex_credentials", Kind::Any, "of Vertex AI: a key file of a service account, or its JSON")
            .guard()
            .or(&["vertex_ai_credentials"]),
        key(
            "tenant_id",
            Kind::Text,
            "of Azure, with client_id and client_secret: tokens of Entra ID in place of a key",
        ),
        key("client_id", Kind::Text, "of Azure: the application's id"),
        key("client_secret", Kind::Secret, "of Azure: the application's secret").guard(),
        key("azure_scope", Kind::Text, "of Azure: what the token is for"),
        key("custom_llm_provider", Kind::Text, "the provider, where model does not begin with it"),
        key("litellm_credential_name", Kind::Text, "an entry of credential_list"),
        key("weight", Kind::Number, "share of the group's requests"),
        key(
            "tags",
            Kind::Texts,
            "which requests it answers, if router_settings.enable_tag_filtering says that tags choose",
        )
        .guard(),
        key("order", Kind::Count, "lower ones first; higher ones only where no lower one can answer"),
        key("rpm", Kind::Count, "most requests in a minute").guard(),
        key("tpm", Kind::Count, "most tokens in a minute").guard(),
        key("max_parallel_requests", Kind::Count, "most requests at once").guard(),
        key("timeout", Kind::Seconds, "longest time of an attempt"),
        key("stream_timeout", Kind::Seconds, "longest time to a stream's first piece"),
        key("cooldown_time", Kind::Seconds, "how long it rests after failures"),
        key("num_retries", Kind::Count, "further attempts").or(&["max_retries"]),
        key(
            "continues",
            Kind::Bool,
            "goes on with answers that broke off elsewhere, by continue_final_message (true for hosted_vllm and sglang)",
        ),
        key("silent_model", Kind::Text, "a group that gets a copy of each request"),
        key("silent_share", Kind::Number, "share of the requests that are copied, 0 to 1"),
        key("extra_headers", Kind::TextMap, "headers that are sent along").or(&["headers"]),
        key("extra_body", Kind::Json, "merged into the body"),
        key("chat_template_kwargs", Kind::Json, "variables of the chat template: {enable_thinking: false}"),
        key(
            "drop_params",
            Kind::Any,
            "leave out parameters that the provider cannot take; a list of names leaves out those too",
        ),
        key("additional_drop_params", Kind::Texts, "parameters that are left out").guard().or(&["drop"]),
        key("rename_params", Kind::TextMap, "parameters that go by another name: {old: new}"),
        key("set_params", Kind::Json, "parameters as they are here, whatever the client says").guard(),
        key("input_cost_per_token", Kind::Number, "USD; also in model_info"),
        key("output_cost_per_token", Kind::Number, "USD; also in model_info"),
        key("cache_read_input_token_cost", Kind::Number, "USD; also in model_info"),
        key("cache_creation_input_token_cost", Kind::Number, "USD; also in model_info"),
        // Parameters of requests that do not give them.
        key("temperature", Kind::Number, "default"),
        key("top_p", Kind::Number, "default"),
        key("top_k", Kind::Count, "default"),
        key("min_p", Kind::Number, "default"),
        key("max_tokens", Kind::Count, "default"),
        key("max_completion_tokens", Kind::Count, "default"),
        key("presence_penalty", Kind::Number, "default"),
        key("frequency_penalty", Kind::Number, "default"),
        key("repetition_penalty", Kind::Number, "default"),
        key("seed", Kind::Count, "default"),
        key("stop", Kind::Texts, "default"),
        key("n", Kind::Count, "default"),
        key("logit_bias", Kind::Json, "default"),
        key("logprobs", Kind::Bool, "default"),
        key("top_logprobs", Kind::Count, "default"),
        key("reasoning_effort", Kind::Any, "default; a text, or {effort: high}"),
        key("thinking", Kind::Json, "default (Anthropic's)"),
        key("response_format", Kind::Json, "default"),
        key("tools", Kind::Any, "default"),
        key("tool_choice", Kind::Any, "default"),
        key("parallel_tool_calls", Kind::Bool, "default"),
        key("stream_options", Kind::Json, "default"),
        key("service_tier", Kind::Text, "default"),
        key("user", Kind::Text, "default"),
        key("metadata", Kind::Json, "default"),
        key("verbosity", Kind::Text, "default"),
        key("web_search_options", Kind::Any, "default, of providers of OpenAI's dialect"),
        key("dimensions", Kind::Count, "default, for embeddings"),
        key("encoding_format", Kind::Text, "default, for embeddings"),
        key("num_ctx", Kind::Count, "tokens of context, of models in this process and of Ollama's"),
        // Models in this process: the flags of `octet serve`.
        key("ctx_size", Kind::Count, "tokens of context").or(&["max_model_len"]),
        key("ubatch_size", Kind::Count, "tokens of a prompt that are processed at once"),
        key("batch_size", Kind::Count, "the same; the smaller one counts"),
        key("kv_cache_dtype", KV, "type of the keys and values in the cache"),
        key("cache_type_k", KV, "the same of the keys alone"),
        key("cache_type_v", KV, "the same of the values alone"),
        key("threads", Kind::Count, "threads"),
        key(
            "isa",
            Kind::OneOf(&["portable", "avx2", "avx-vnni", "avx512", "neon", "neon-i8mm"]),
            "instruction set",
        ),
        key("no_pin", Kind::Bool, "let the system move threads between processors"),
        key("exact", Kind::Bool, "f32 weights and activations"),
        key("no_memory_check", Kind::Bool, "load it even where it seems larger than the free memory"),
        key("parallel", Kind::Count, "answers that are generated at once").or(&["max_num_seqs"]),
        key("max_queue", Kind::Count, "answers that may wait for their turn"),
        key("kv_tokens", Kind::Count, "tokens that the KV cache holds"),
        key("cache_ram", Kind::Size, "memory for snapshots; a plain number counts MiB"),
        key("cache_disk", Kind::Text, "a folder in which the cache is kept too").or(&["slot_save_path"]),
        key("cache_disk_size", Kind::Size, "what the files in it may take"),
        key(
            "keep_alive",
            Kind::Seconds,
            "how long it stays loaded unused, here or at an Ollama server; -1 is for good",
        ),
        key("reasoning_format", Kind::OneOf(&["deepseek", "hidden", "none"]), "where reasoning goes"),
        key(
            "tool_call_parser",
            Kind::OneOf(&["qwen3_coder", "hermes", "none"]),
            "how the model writes tool calls",
        ),
        key("chat_template", Kind::Text, "a file with a Jinja template instead of the model's own"),
        key(
            "speculative",
            Kind::Text,
            "how the next tokens are guessed: auto, off, mtp, lookup, draft=MODEL",
        ),
        key("draft_max", Kind::Count, "most tokens to guess in a step, 0 to 16")
            .or(&["num_speculative_tokens"]),
    ],
    warned: &[
        (
            &["configurable_clientside_auth_params", "use_in_pass_through", "use_litellm_proxy"],
            "clients cannot change where a request goes, and there is no pass-through",
        ),
        (&["allowed_openai_params"], "every parameter of OpenAI's is passed on here"),
        (&["merge_reasoning_content_in_choices"], "reasoning comes in reasoning_content"),
        (
            &["cache_control_injection_points"],
            "cache_control is passed on where the client sends it, and not added",
        ),
        (
            &["prompt_id", "prompt_variables", "prompt_label", "prompt_version"],
            "there are no stored prompts here",
        ),
        (&["stream"], "whether an answer is streamed is the client's choice"),
        OTHER_COSTS,
        (&["itpm", "otpm"], "tpm counts tokens of prompts and answers together"),
        (
            &["timeout_by_service_tier", "stream_timeout_by_service_tier"],
            "timeout and stream_timeout count for all requests",
        ),
        (
            &["keepalive_seconds", "allow_client_keepalive_override"],
            "streams say that they are alive by themselves; keep_alive says how long a model in this process stays loaded",
        ),
        (
            &["tag_regex", "provider_affinity_header"],
            "deployments are not chosen by tags and headers here: give them model_names of their own, or use router_settings.sticky",
        ),
        (
            &[
                "vector_store_id",
                "milvus_text_field",
                "milvus_db_name",
                "milvus_partition_names",
                "valkey_host",
                "valkey_port",
                "valkey_password",
                "valkey_ssl",
                "valkey_text_field",
                "valkey_embedding_field",
                "max_file_size_mb",
                "bucket_name",
                "gcs_bucket_name",
                "s3_bucket_name",
                "s3_region_name",
                "s3_access_key_id",
                "s3_secret_access_key",
                "s3_endpoint_url",
                "s3_bucket_owner",
                "s3_encryption_key_id",
                "s3_output_bucket_name",
                "aws_batch_role_arn",
            ],
            "files, batches and vector stores are not offered here",
        ),
        (&["default_api_key_tpm_limit", "default_api_key_rpm_limit"], "limits of keys are set with the key"),
        (
            &[
                "model_info",
                "litellm_trace_id",
                "litellm_call_id",
                "caching",
                "cache",
                "fireworks_forward_user_id",
                "use_chat_completions_api",
            ],
            "it does nothing here",
        ),
        (&["budget_duration"], "it belongs to max_budget, which is not enforced here"),
        (
            &["mock_response", "mock_testing_fallbacks", "mock_timeout"],
            "answers are never made up; the entry is left out",
        ),
        (
            &[
                "aws_session_name",
                "aws_sts_endpoint",
                "watsonx_region_name",
                "region_name",
                "aws_external_id",
                "aws_session_tags",
                "aws_bedrock_project_id",
                "bedrock_tags",
            ],
            "it does nothing here",
        ),
        (
            &["azure_ad_token", "azure_ad_token_provider", "azure_username", "azure_password"],
            "Azure is reached with api_key, or with tenant_id, client_id and client_secret",
        ),
        (
            &["ssl_verify", "ssl_certificate"],
            "certificates are always checked; add yours to the system's (SSL_CERT_FILE)",
        ),
        (&["model_config", "router_config"], "routing is set for all requests in router_settings"),
        (
            &["auto_router_*", "complexity_router_*", "adaptive_router_*", "quality_router_*"],
            "write a cascade instead: a fast group, a strong one, and rules (docs/routing.md)",
        ),
        (
            &["anthropic_*", "openai_identity_*", "openai_service_account_id", "use_xai_oauth"],
            "servers are reached with api_key; tokens of identity providers are not fetched here",
        ),
    ],
    refused: &[
        (&["max_budget"], "budgets are for keys and for all requests together, not for one deployment"),
        (
            &["guardrails"],
            "guardrails are not run here: put a filter in front, or ask for them at the provider",
        ),
    ],
    open: false,
};

/// Prices by anything else than tokens, or by how many of them there are.
const OTHER_COSTS: (&[&str], &str) = (
    &[
        "input_cost_per_*",
        "output_cost_per_*",
        "cache_read_input_*",
        "cache_creation_input_*",
        "cost_per_*",
        "ocr_cost_per_*",
        "annotation_cost_per_*",
        "search_context_cost_per_query",
        "google_maps_grounding_cost_per_query",
        "citation_cost_per_token",
        "tiered_pricing",
        "regional_*",
        "output_vector_size",
    ],
    "a request costs what input_cost_per_token, output_cost_per_token, cache_read_input_token_cost and cache_creation_input_token_cost say",
);

/// Parameters that stand in for those that a request does not give.
pub const SAMPLING: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "n",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "thinking",
    "response_format",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stream_options",
    "service_tier",
    "user",
    "metadata",
    "verbosity",
    "dimensions",
    "encoding_format",
];

/// Keys of models in this process.
pub const ENGINE_KEYS: &[&str] = &[
    "ctx_size",
    "ubatch_size",
    "batch_size",
    "kv_cache_dtype",
    "cache_type_k",
    "cache_type_v",
    "threads",
    "isa",
    "no_pin",
    "exact",
    "no_memory_check",
    "parallel",
    "max_queue",
    "kv_tokens",
    "cache_ram",
    "cache_disk",
    "cache_disk_size",
    "keep_alive",
    "reasoning_format",
    "tool_call_parser",
    "chat_template",
    "speculative",
    "draft_max",
];

/// What a model may be for.
const MODES: &[&str] = &[
    "chat",
    "responses",
    "completion",
    "embedding",
    "audio_transcription",
    "audio_speech",
    "image_generation",
    "image_edit",
    "moderation",
    "rerank",
];

/// What all may stand in `model_info`.
const INFO_KEYS: &[Key] = &[
    key("id", Kind::Text, "the deployment's name in logs and metrics; without one it is made from the entry"),
    key("mode", Kind::OneOf(MODES), "what the model is for"),
    key("base_model", Kind::Text, "the model, where its name does not tell"),
    key("max_input_tokens", Kind::Count, "the window for prompts"),
    key("max_output_tokens", Kind::Count, "the longest answer").or(&["max_tokens"]),
    key("input_cost_per_token", Kind::Number, "USD"),
    key("cache_read_input_token_cost", Kind::Number, "USD, for tokens that the provider's cache held"),
    key("output_cost_per_token", Kind::Number, "USD"),
    key(
        "cache_creation_input_token_cost",
        Kind::Number,
        "USD, for tokens that the provider's cache takes in",
    ),
    key("supports_vision", Kind::Bool, "whether it takes images"),
    key("supports_function_calling", Kind::Bool, "whether it takes tools"),
    key("supports_reasoning", Kind::Bool, "whether it reasons"),
    key("access_groups", Kind::Texts, "names by which virtual keys may use it").guard(),
    key("blocked", Kind::Bool, "the entry is left out (false)").guard(),
    key("disable_background_health_check", Kind::Bool, "it is not asked beside the requests (false)"),
];

/// `model_info`.
pub static MODEL_INFO: Section = Section {
    name: "model_info",
    doc: "what is known about the model; other keys are passed on to clients that ask",
    keys: INFO_KEYS,
    warned: &[
        OTHER_COSTS,
        (
            &["team_public_model_name"],
            "models belong to no team here: models of teams and keys, and access_groups, say who may use it",
        ),
        (&["rpm", "tpm"], "it counts under litellm_params"),
        (
            &["health_check_model", "health_check_timeout", "health_check_max_tokens", "health_check_voice"],
            "a check asks for the list of models, and generates nothing; health_check_timeout stands in general_settings",
        ),
    ],
    refused: &[
        (
            &["team_id"],
            "models belong to no team here, so everybody may use it: models of teams and keys, and access_groups, say who may",
        ),
        (&["access_windows"], "a model may be used at any time here"),
    ],
    open: true,
};

/// An entry of `credential_list`.
pub static CREDENTIAL: Section = Section {
    name: "credential_list",
    doc: "keys and addresses with a name",
    keys: &[
        key("credential_name", Kind::Text, "its name"),
        key("credential_values", Kind::Section(&CREDENTIAL_VALUES), "what litellm_params would say"),
        key("credential_info", Kind::Json, "for people"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `credential_values`.
pub static CREDENTIAL_VALUES: Section = Section {
    name: "credential_values",
    doc: "what litellm_params would say",
    keys: &[
        key("api_base", Kind::Text, "where the API begins").guard().or(&["base_url"]),
        key("api_key", Kind::Secret, "the key").guard(),
        key("api_version", Kind::Text, "Azure's"),
        key("organization", Kind::Text, "OpenAI's"),
    ],
    warned: &[(
        &[
            "aws_access_key_id",
            "aws_secret_access_key",
            "aws_region_name",
            "vertex_project",
            "vertex_location",
            "vertex_credentials",
        ],
        "of the clouds' keys only litellm_params' own and the environment's are read: write them there",
    )],
    refused: &[],
    open: false,
};
