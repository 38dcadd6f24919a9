//! The keys of `model_list`: LiteLLM's, and those of local models.

use crate::keys::{Key, Kind, Section, key};

/// An entry of `model_list`.
pub static MODEL: Section = Section {
    name: "model_list",
    doc: "a deployment",
    keys: &[
        key("model_name", Kind::Text, "the name for clients; * matches any text").guard(),
        key("litellm_params", Kind::Section(&PARAMS), "the target and its parameters").guard(),
        key("model_info", Kind::Section(&MODEL_INFO), "facts about the model").guard(),
    ],
    warned: &[(&["tpm", "rpm"], "it has an effect under litellm_params only")],
    refused: &[],
    open: false,
};

const OF_OPENAI: &str = "default, of OpenAI-compatible providers";
const OF_OLLAMA: &str = "an option of Ollama; default, of OpenAI-compatible providers";
const KV: Kind = Kind::OneOf(&["f16", "f32", "q8_0"]);

/// `litellm_params`.
pub static PARAMS: Section = Section {
    name: "litellm_params",
    doc: "the target and its parameters",
    keys: &[
        key(
            "model",
            Kind::Text,
            "provider/model; octet/PATH-or-name is a local model, process/ID a server started on demand",
        ),
        key("api_base", Kind::Text, "the base URL of the API").guard().or(&["base_url"]),
        key(
            "discover",
            Kind::OneOf(&["dns"]),
            "dns: one deployment for each address of the name in api_base, looked up every 5 s",
        ),
        key("mock_response", Kind::Text, "the text of every answer: nothing is sent to a provider"),
        key("api_key", Kind::Secret, "the key. Default: the provider's variable").guard(),
        key("api_version", Kind::Text, "Azure's"),
        key("organization", Kind::Text, "OpenAI's"),
        key("aws_access_key_id", Kind::Secret, "of Bedrock. Default: AWS_ACCESS_KEY_ID, then the profile")
            .guard(),
        key("aws_secret_access_key", Kind::Secret, "of Bedrock").guard(),
        key("aws_session_token", Kind::Secret, "of Bedrock, for temporary keys").guard(),
        key("aws_region_name", Kind::Text, "of Bedrock. Default: AWS_REGION"),
        key("aws_profile_name", Kind::Text, "of Bedrock: a profile in ~/.aws/credentials"),
        key("aws_bedrock_runtime_endpoint", Kind::Text, "of Bedrock: the base URL of the API").guard(),
        key("aws_role_name", Kind::Text, "assuming roles is not supported: the entry is left out").guard(),
        key("aws_web_identity_token", Kind::Text, "assuming roles is not supported: the entry is left out")
            .guard(),
        key("vertex_project", Kind::Text, "of Vertex AI. Default: the credentials' project")
            .or(&["vertex_ai_project"]),
        key("vertex_location", Kind::Text, "of Vertex AI (us-central1)").or(&["vertex_ai_location"]),
        key("vertex_credentials", Kind::Any, "of Vertex AI: a key file of a service account, or its JSON")
            .guard()
            .or(&["vertex_ai_credentials"]),
        key(
            "tenant_id",
            Kind::Text,
            "of Azure, with client_id and client_secret: Entra ID tokens instead of a key",
        ),
        key("client_id", Kind::Text, "of Azure: the application's id"),
        key("client_secret", Kind::Secret, "of Azure: the application's secret").guard(),
        key("azure_scope", Kind::Text, "of Azure: the token's scope"),
        key("custom_llm_provider", Kind::Text, "the provider, if model has no such prefix"),
        key("litellm_credential_name", Kind::Text, "an entry of credential_list"),
        key("weight", Kind::Number, "share of the group's requests"),
        key("tags", Kind::Texts, "which requests it answers, with router_settings.enable_tag_filtering")
            .guard(),
        key("order", Kind::Count, "lower ones first; higher ones only if no lower one can answer"),
        key("rpm", Kind::Count, "maximum requests per minute").guard(),
        key("tpm", Kind::Count, "maximum tokens per minute; a running request counts with its prompt and the longest answer that it may get").guard(),
        key("max_parallel_requests", Kind::Count, "maximum concurrent requests").guard(),
        key("timeout", Kind::Seconds, "time limit of an attempt"),
        key("stream_timeout", Kind::Seconds, "time limit to a stream's first piece"),
        key("cooldown_time", Kind::Seconds, "cooldown after failures"),
        key("num_retries", Kind::Count, "further attempts").or(&["max_retries"]),
        key(
            "continues",
            Kind::Bool,
            "it can continue an answer that broke off at another deployment, with continue_final_message (true for hosted_vllm and sglang)",
        ),
        key("silent_model", Kind::Text, "a group that gets a copy of each request"),
        key("silent_share", Kind::Number, "share of the requests that are copied, 0 to 1"),
        key("extra_headers", Kind::TextMap, "additional headers").or(&["headers"]),
        key("extra_body", Kind::Json, "merged into the body"),
        key("chat_template_kwargs", Kind::Json, "variables of the chat template: {enable_thinking: false}"),
        key(
            "drop_params",
            Kind::Any,
            "drop parameters that the provider does not support; a list of names drops those too",
        ),
        key("modify_params", Kind::Bool, "add messages and tools that the provider requires"),
        key("additional_drop_params", Kind::Texts, "dropped parameters").guard().or(&["drop"]),
        key("rename_params", Kind::TextMap, "renamed parameters: {old: new}"),
        key("set_params", Kind::Json, "parameters that take precedence over the client").guard(),
        key("input_cost_per_token", Kind::Number, "USD; also in model_info. If it and output_cost_per_token are 0, a spent budget does not refuse requests"),
        key("output_cost_per_token", Kind::Number, "USD; also in model_info"),
        key("cache_read_input_token_cost", Kind::Number, "USD; also in model_info"),
        key("cache_creation_input_token_cost", Kind::Number, "USD; also in model_info"),
        // Default parameters of requests.
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
        key("web_search_options", Kind::Any, "default, of OpenAI-compatible providers"),
        key("modalities", Kind::Texts, OF_OPENAI),
        key("audio", Kind::Json, OF_OPENAI),
        key("prediction", Kind::Json, OF_OPENAI),
        key("store", Kind::Bool, OF_OPENAI),
        key("prompt_cache_key", Kind::Text, OF_OPENAI),
        key("safety_identifier", Kind::Text, OF_OPENAI),
        key("include_reasoning", Kind::Bool, OF_OPENAI),
        key("reasoning", Kind::Any, OF_OPENAI),
        key("enable_thinking", Kind::Bool, OF_OPENAI),
        key("thinking_budget", Kind::Count, OF_OPENAI),
        key("min_tokens", Kind::Count, OF_OPENAI),
        key("length_penalty", Kind::Number, OF_OPENAI),
        key("num_predict", Kind::Number, OF_OLLAMA),
        key("repeat_penalty", Kind::Number, OF_OLLAMA),
        key("repeat_last_n", Kind::Number, OF_OLLAMA),
        key("num_gpu", Kind::Number, OF_OLLAMA),
        key("main_gpu", Kind::Count, OF_OLLAMA),
        key("num_thread", Kind::Count, OF_OLLAMA),
        key("num_batch", Kind::Count, OF_OLLAMA),
        key("mirostat", Kind::Count, OF_OLLAMA),
        key("mirostat_eta", Kind::Number, OF_OLLAMA),
        key("mirostat_tau", Kind::Number, OF_OLLAMA),
        key("tfs_z", Kind::Number, OF_OLLAMA),
        key("dimensions", Kind::Count, "default, for embeddings"),
        key("encoding_format", Kind::Text, "default, for embeddings"),
        key("num_ctx", Kind::Count, "tokens of context, of local models and Ollama"),
        // Local models: the flags of `octet serve`.
        key("ctx_size", Kind::Count, "tokens of context").or(&["max_model_len"]),
        key("ubatch_size", Kind::Count, "maximum tokens per step"),
        key("batch_size", Kind::Count, "the same; the smaller one is used"),
        key("kv_cache_dtype", KV, "type of the KV cache"),
        key("cache_type_k", KV, "type of its keys"),
        key("cache_type_v", KV, "type of its values"),
        key("threads", Kind::Count, "threads"),
        key(
            "isa",
            Kind::OneOf(&["portable", "avx2", "avx-vnni", "avx512", "neon", "neon-i8mm"]),
            "instruction set",
        ),
        key("no_pin", Kind::Bool, "do not pin threads to processors"),
        key("exact", Kind::Bool, "f32 weights and activations"),
        key("no_memory_check", Kind::Bool, "load it even if it seems larger than the free memory"),
        key("no_packed", Kind::Bool, "keep no packed weights for the next start, and use none"),
        key("parallel", Kind::Count, "maximum concurrent requests").or(&["max_num_seqs"]),
        key("max_queue", Kind::Count, "maximum queued requests"),
        key("kv_tokens", Kind::Count, "size of the KV cache in tokens"),
        key("cache_ram", Kind::Size, "memory for snapshots; a plain number is in MiB"),
        key("cache_disk", Kind::Text, "a folder for the disk cache").or(&["slot_save_path"]),
        key("cache_disk_size", Kind::Size, "maximum size of its files"),
        key(
            "keep_alive",
            Kind::Seconds,
            "how long it stays loaded while idle, here or at an Ollama server; -1: forever",
        ),
        key(
            "reasoning_format",
            Kind::OneOf(&["deepseek", "hidden", "none"]),
            "format of reasoning in answers",
        ),
        key(
            "tool_call_parser",
            Kind::OneOf(&["qwen3_coder", "hermes", "openai", "none"]),
            "the model's syntax of tool calls",
        ),
        key("chat_template", Kind::Text, "a file with a Jinja template instead of the model's own"),
        key("speculative", Kind::Text, "speculative decoding: auto, off, mtp, lookup, draft=MODEL"),
        key("draft_max", Kind::Count, "maximum draft tokens per step, 0 to 16")
            .or(&["num_speculative_tokens"]),
    ],
    warned: &[
        (
            &["configurable_clientside_auth_params", "use_in_pass_through", "use_litellm_proxy"],
            "clients cannot change the address of a request, and LiteLLM's pass-through endpoints are not supported",
        ),
        (&["allowed_openai_params"], "all of OpenAI's parameters are always passed on"),
        (&["merge_reasoning_content_in_choices"], "reasoning is returned in reasoning_content"),
        (
            &["cache_control_injection_points"],
            "cache_control is passed on if the client sends it, and not added",
        ),
        (
            &["prompt_id", "prompt_variables", "prompt_label", "prompt_version"],
            "stored prompts are not supported",
        ),
        (&["stream"], "the client decides whether an answer is streamed"),
        OTHER_COSTS,
        (&["rpm_limit", "tpm_limit"], "ignored, as by LiteLLM: the limits of an entry are rpm and tpm"),
        (&["itpm", "otpm"], "tpm counts the tokens of prompts and answers"),
        (
            &["timeout_by_service_tier", "stream_timeout_by_service_tier"],
            "timeout and stream_timeout apply to all requests",
        ),
        (
            &["keepalive_seconds", "allow_client_keepalive_override"],
            "streams have keep-alives; keep_alive is how long a local model stays loaded",
        ),
        (
            &["tag_regex", "provider_affinity_header"],
            "deployments are not chosen by headers: give them separate model_names, or use router_settings.sticky",
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
            "files, batches and vector stores are not supported",
        ),
        (&["default_api_key_tpm_limit", "default_api_key_rpm_limit"], "limits of keys are set for each key"),
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
            "it has no effect here",
        ),
        (&["budget_duration"], "it belongs to max_budget, which is not enforced"),
        (
            &["mock_testing_fallbacks", "mock_timeout"],
            "mock failures are not supported; the entry is left out",
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
            "it has no effect here",
        ),
        (
            &["azure_ad_token", "azure_ad_token_provider", "azure_username", "azure_password"],
            "Azure is supported with api_key, or with tenant_id, client_id and client_secret",
        ),
        (
            &["ssl_verify", "ssl_certificate"],
            "certificates are always verified; add yours to the system's (SSL_CERT_FILE)",
        ),
        (&["model_config", "router_config"], "routing is configured for all requests in router_settings"),
        (
            &["auto_router_*", "complexity_router_*", "adaptive_router_*", "quality_router_*"],
            "use a cascade instead: a fast group, a strong one, and rules (docs/routing.md)",
        ),
        (
            &["anthropic_*", "openai_identity_*", "openai_service_account_id", "use_xai_oauth"],
            "use api_key; tokens of identity providers are not supported",
        ),
    ],
    refused: &[
        (&["max_budget"], "a budget is for a key or for all requests, not for a deployment"),
        (&["guardrails"], "guardrails are not supported: put a filter in front, or use the provider's"),
    ],
    open: false,
};

/// Prices by other units than tokens, or by their number.
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
    "a request is billed by input_cost_per_token, output_cost_per_token, cache_read_input_token_cost and cache_creation_input_token_cost",
);

/// Default parameters of requests.
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

/// Default parameters that are sent to OpenAI-compatible providers as they are.
pub const BODY_KEYS: &[&str] = &[
    "modalities",
    "audio",
    "prediction",
    "store",
    "prompt_cache_key",
    "safety_identifier",
    "include_reasoning",
    "reasoning",
    "enable_thinking",
    "thinking_budget",
    "min_tokens",
    "length_penalty",
];

/// Default parameters that Ollama has among its options. llama.cpp's server has some of these names too.
pub const OLLAMA_OPTIONS: &[&str] = &[
    "num_predict",
    "repeat_penalty",
    "repeat_last_n",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_batch",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "tfs_z",
];

/// Keys of local models.
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
    "no_packed",
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

/// Purposes of models.
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

/// All keys of `model_info`.
const INFO_KEYS: &[Key] = &[
    key("id", Kind::Text, "the deployment's id in logs and metrics. Default: derived from the entry"),
    key("mode", Kind::OneOf(MODES), "the model's purpose"),
    key("base_model", Kind::Text, "the model, if its name is another one"),
    key("max_input_tokens", Kind::Count, "maximum tokens of a prompt"),
    key("max_output_tokens", Kind::Count, "maximum tokens of an answer"),
    key("max_tokens", Kind::Count, "the same, if max_output_tokens is not set"),
    key("input_cost_per_token", Kind::Number, "USD"),
    key("cache_read_input_token_cost", Kind::Number, "USD, for prompt tokens read from the provider's cache"),
    key("output_cost_per_token", Kind::Number, "USD"),
    key(
        "cache_creation_input_token_cost",
        Kind::Number,
        "USD, for prompt tokens written to the provider's cache",
    ),
    key("supports_vision", Kind::Bool, "whether it supports images"),
    key("supports_function_calling", Kind::Bool, "whether it supports tools"),
    key("supports_reasoning", Kind::Bool, "whether it supports reasoning"),
    key("access_groups", Kind::Texts, "names by which virtual keys may use it").guard(),
    key("blocked", Kind::Bool, "the entry is left out (false)").guard(),
    key("disable_background_health_check", Kind::Bool, "no background health checks (false)"),
];

/// `model_info`.
pub static MODEL_INFO: Section = Section {
    name: "model_info",
    doc: "facts about the model; other keys are returned to clients of /model/info",
    keys: INFO_KEYS,
    warned: &[
        OTHER_COSTS,
        (
            &["team_public_model_name"],
            "models do not belong to teams: models of teams and keys, and access_groups, control who may use it",
        ),
        (&["rpm", "tpm"], "it has an effect under litellm_params only"),
        (
            &["health_check_model", "health_check_timeout", "health_check_max_tokens", "health_check_voice"],
            "a check requests the list of models, and generates nothing; health_check_timeout belongs in general_settings",
        ),
    ],
    refused: &[
        (
            &["team_id"],
            "models do not belong to teams, so every key could use it: models of teams and keys, and access_groups, control that",
        ),
        (&["access_windows"], "models can be used at any time"),
    ],
    open: true,
};

/// An entry of `credential_list`.
pub static CREDENTIAL: Section = Section {
    name: "credential_list",
    doc: "named keys and addresses",
    keys: &[
        key("credential_name", Kind::Text, "its name"),
        key("credential_values", Kind::Section(&CREDENTIAL_VALUES), "as in litellm_params"),
        key("credential_info", Kind::Json, "for people"),
    ],
    warned: &[],
    refused: &[],
    open: false,
};

/// `credential_values`.
pub static CREDENTIAL_VALUES: Section = Section {
    name: "credential_values",
    doc: "as in litellm_params",
    keys: &[
        key("api_base", Kind::Text, "the base URL of the API").guard().or(&["base_url"]),
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
        "keys of clouds are read from litellm_params and the environment only",
    )],
    refused: &[],
    open: false,
};
