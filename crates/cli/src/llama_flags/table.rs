//! The flags of llama.cpp's programs, and vLLM's most common ones, that Octet does not have under that name, and what becomes of each.
//! Read by `llama_flags`.

/// The value of a flag.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Takes {
    Nothing,
    Value,
    /// A word of [`SWITCHES`], or no value.
    Switch,
}
use Takes::{Nothing, Switch, Value};

pub(super) const SWITCHES: [&str; 5] = ["on", "off", "auto", "0", "1"];

/// What becomes of a flag.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// Octet's spelling. A value is appended to one that ends in `:`.
    Here(&'static str),
    /// It has no effect, and why.
    Ignored(&'static str),
    /// It would change answers, protect something or serve something; what to do instead.
    Refused(&'static str),
}
use Meaning::{Here, Ignored, Refused};

const DEVICE: Meaning = Ignored("all of a model's layers are on the devices that --device names");
const FILE: Meaning = Ignored("how a model's file is read cannot be chosen");
const THREADS: Meaning = Ignored("--threads and --no-pin say how processors are used");
const DRAFT: Meaning = Ignored("speculative decoding adapts by itself; --speculative and --draft-max set it");
const MEMORY: Meaning =
    Ignored("the cache is one for all requests; --kv-tokens and --cache-ram set its size");
const LOG: Meaning = Ignored("-v and RUST_LOG say what is logged, to standard error");
const ALWAYS: Meaning = Ignored("always on");
const PAGE: Meaning = Ignored("the chat page has no settings on the server");
const CORS: Meaning = Ignored("--cors-origin says which web pages may use the server");
const VISION: Meaning = Ignored("a projector runs where the model does, if there is room");
const VIDEO: Meaning = Ignored("no model sees videos here");

const LORA: Meaning = Refused("merge the adapter into the model's file");
const CONTROL: Meaning = Refused("leave it out");
const ROPE: Meaning = Refused("the model's file says how positions are scaled: change it there");
const REQUEST: Meaning = Refused("there is no default for it: send it in requests");
const PAGE_TOOLS: Meaning =
    Refused("the server runs no tools of its own: docs/page.md says how the page reaches some");
const MODELS: Meaning = Refused("name the models: octet serve A=MODEL B=MODEL, or --config");
const TLS: Meaning = Refused("use a proxy for TLS (docs/deploy.md)");
const ADAPTIVE: Meaning = Refused("leave it out");
const PRESET: Meaning = Refused("name the model itself: octet serve -hf user/repo:QUANT");

/// Flags, separated by spaces.
pub(super) const FLAGS: &[(&str, Takes, Meaning)] = &[
    // Spellings.
    ("-ctk", Value, Here("--cache-type-k")),
    ("-ctv", Value, Here("--cache-type-v")),
    ("-ub", Value, Here("--ubatch-size")),
    ("-md", Value, Here("--model-draft")),
    ("-hfd -hfrd --hf-repo-draft --spec-draft-hf", Value, Here("--model-draft=hf:")),
    ("-np", Value, Here("--parallel")),
    ("-hf -hfr", Value, Here("--hf")),
    ("-mu --model-url", Value, Here("--model")),
    ("-sys", Value, Here("--system")),
    ("-to", Value, Here("--timeout")),
    ("-a", Value, Here("--alias")),
    ("-dev", Value, Here("--device")),
    ("-ts", Value, Here("--tensor-split")),
    ("-cram", Value, Here("--cache-ram")),
    ("-rea", Value, Here("--reasoning")),
    ("--log-verbose", Nothing, Here("--verbose")),
    ("--chat-template-file", Value, Here("--chat-template")),
    ("--cors-origins", Value, Here("--cors-origin")),
    ("--sleep-idle-seconds", Value, Here("--keep-alive")),
    // No effect: processor, devices and memory.
    ("-tb --threads-batch --threads-http", Value, THREADS),
    ("-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll", Value, THREADS),
    ("-Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch", Value, THREADS),
    ("--prio-batch --poll-batch --numa", Value, THREADS),
    ("-ngl --gpu-layers --n-gpu-layers -sm --split-mode", Value, DEVICE),
    ("-mg --main-gpu -ot --override-tensor -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn --rpc", Value, DEVICE),
    ("-cmoe --cpu-moe -kvo --kv-offload -nkvo --no-kv-offload --no-host", Nothing, DEVICE),
    ("--op-offload --no-op-offload -bs --backend-sampling", Nothing, DEVICE),
    ("-fit --fit", Switch, Ignored("sizes that no flag sets always fit the free memory")),
    ("-fitt --fit-target -fitc --fit-ctx", Value, Ignored("--memory-limit limits the memory")),
    ("-fa --flash-attn", Switch, Ignored("there is one kind of attention here")),
    ("--mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io", Nothing, FILE),
    ("-lm --load-mode -lzm --lazy-mode", Value, FILE),
    ("--repack -nr --no-repack --check-tensors --warmup --no-warmup", Nothing, FILE),
    ("--swa-full -kvu --kv-unified -no-kvu --no-kv-unified", Nothing, MEMORY),
    ("--cache-idle-slots --no-cache-idle-slots", Nothing, MEMORY),
    ("-dt --defrag-thold --kv-unified-per-slot -cms --checkpoint-min-step", Value, MEMORY),
    ("-ctxcp --ctx-checkpoints --swa-checkpoints", Value, MEMORY),
    ("--cache-reuse -sps --slot-prompt-similarity", Value, MEMORY),
    ("--keep", Value, Ignored("a prompt is never shifted out of the context")),
    // No effect: the server.
    ("-cb --cont-batching --cache-prompt --metrics --slots --jinja", Nothing, ALWAYS),
    ("--embedding --embeddings --rerank --reranking --models-autoload", Nothing, ALWAYS),
    ("--no-context-shift --prefill-assistant --no-skip-chat-parsing", Nothing, ALWAYS),
    ("-nocb --no-cont-batching --no-models-autoload", Nothing, Ignored("it cannot be turned off")),
    ("--no-cache-prompt", Nothing, Ignored("\"cache_prompt\": false in a request turns the cache off")),
    ("--no-slots", Nothing, Ignored("/slots is always there")),
    ("--props", Nothing, Ignored("requests cannot change properties of the server")),
    ("--no-jinja", Nothing, Ignored("chat templates are always read as Jinja")),
    ("--perf --no-perf -e --escape --no-escape", Nothing, Ignored("it is for other programs of llama.cpp")),
    ("--models-max", Value, Ignored("--memory-limit says how much all models may take")),
    ("--sse-ping-interval", Value, Ignored("the keep-alive interval is fixed")),
    ("--reuse-port", Nothing, Ignored("a port is used by one server")),
    ("--tags", Value, Ignored("models have no tags")),
    ("--cors-methods --cors-headers", Value, CORS),
    ("--cors-credentials --no-cors-credentials", Nothing, CORS),
    ("--ui --webui --no-ui --no-webui", Nothing, Ignored("the chat page is always there")),
    ("--ui-config --webui-config --ui-config-file --webui-config-file", Value, PAGE),
    ("--no-ui-mcp-proxy --no-webui-mcp-proxy -no-ag --no-agent", Nothing, PAGE),
    (
        "--reasoning-preserve --no-reasoning-preserve",
        Nothing,
        Ignored("the chat template decides; --chat-template-kwargs sets its variables"),
    ),
    ("--log-disable --log-jsonl --no-log-jsonl --log-prefix --no-log-prefix", Nothing, LOG),
    ("--log-timestamps --no-log-timestamps", Nothing, LOG),
    ("--log-file --log-prompts-dir -lv --verbosity --log-verbosity", Value, LOG),
    ("--log-colors", Switch, LOG),
    ("--mmproj-auto", Nothing, Ignored("a projector beside the model is always found")),
    ("--no-mmproj-auto", Nothing, Here("--no-mmproj")),
    ("--mmproj-offload --no-mmproj-offload", Nothing, VISION),
    ("-mmdev --mmproj-device --mtmd-batch-max-tokens", Value, VISION),
    ("--video-fps --video-timestamp-interval --video-ffmpeg-dir --media-path", Value, VIDEO),
    // No effect: speculative decoding, which never changes answers.
    ("-ctkd --cache-type-k-draft --spec-draft-type-k", Value, DRAFT),
    ("-ctvd --cache-type-v-draft --spec-draft-type-v", Value, DRAFT),
    ("-td --threads-draft --spec-draft-threads -tbd --threads-batch-draft", Value, DRAFT),
    ("--spec-draft-threads-batch -Cd --cpu-mask-draft --spec-draft-cpu-mask", Value, DRAFT),
    ("-Crd --cpu-range-draft --spec-draft-cpu-range --cpu-strict-draft", Value, DRAFT),
    ("--spec-draft-cpu-strict --prio-draft --spec-draft-prio --poll-draft", Value, DRAFT),
    ("--spec-draft-poll -Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch", Value, DRAFT),
    ("--cpu-strict-batch-draft --spec-draft-cpu-strict-batch", Value, DRAFT),
    ("--prio-batch-draft --spec-draft-prio-batch", Value, DRAFT),
    ("--poll-batch-draft --spec-draft-poll-batch", Value, DRAFT),
    ("-otd --override-tensor-draft --spec-draft-override-tensor", Value, DRAFT),
    ("-cmoed --cpu-moe-draft --spec-draft-cpu-moe --spec-default", Nothing, DRAFT),
    ("-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe", Value, DRAFT),
    ("-devd --device-draft --spec-draft-device", Value, DRAFT),
    ("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", Value, DRAFT),
    ("--draft-p-split --spec-draft-p-split --spec-synth-len --spec-synth-rates", Value, DRAFT),
    ("--spec-draft-backend-sampling --no-spec-draft-backend-sampling", Nothing, DRAFT),
    ("-lcs --lookup-cache-static -lcd --lookup-cache-dynamic", Value, DRAFT),
    ("--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match", Value, DRAFT),
    ("--spec-ngram-simple-size-n --spec-ngram-simple-size-m", Value, DRAFT),
    ("--spec-ngram-simple-min-hits --spec-ngram-map-k-min-hits", Value, DRAFT),
    ("--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m", Value, DRAFT),
    ("--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m", Value, DRAFT),
    ("--spec-ngram-map-k4v-min-hits --spec-ngram-min-hits", Value, DRAFT),
    ("--spec-ngram-size-n --spec-ngram-size-m", Value, DRAFT),
    // No effect: vLLM's.
    (
        "--gpu-memory-utilization --swap-space --cpu-offload-gb",
        Value,
        Ignored("--memory-limit limits the memory"),
    ),
    ("-tp --tensor-parallel-size -pp --pipeline-parallel-size -dp --data-parallel-size", Value, DEVICE),
    ("--distributed-executor-backend --max-parallel-loading-workers", Value, DEVICE),
    ("--enable-expert-parallel --enforce-eager --disable-custom-all-reduce", Nothing, DEVICE),
    ("--enable-auto-tool-choice --enable-prefix-caching --enable-chunked-prefill", Nothing, ALWAYS),
    ("--no-enable-prefix-caching --no-enable-chunked-prefill", Nothing, Ignored("it cannot be turned off")),
    (
        "--reasoning-parser",
        Value,
        Ignored("the chat template says how reasoning is marked; --reasoning-format says where it goes"),
    ),
    ("--trust-remote-code", Nothing, Ignored("no code is read from a model's repository")),
    ("--dtype --quantization --load-format --block-size", Value, Ignored("the model's file says it")),
    (
        "--max-num-batched-tokens",
        Value,
        Ignored("--ubatch-size says how many tokens of prompts a step takes"),
    ),
    ("--guided-decoding-backend --structured-outputs-config", Value, Ignored("there is one")),
    ("--disable-log-requests --disable-log-stats --enable-log-requests", Nothing, LOG),
    ("--uvicorn-log-level --max-log-len", Value, LOG),
    ("--limit-mm-per-prompt", Value, Ignored("a request may have 256 images")),
    // Refused: other answers.
    ("--lora --lora-scaled --lora-modules", Value, LORA),
    ("--enable-lora", Nothing, LORA),
    ("--lora-init-without-apply", Nothing, LORA),
    ("--control-vector --control-vector-scaled --control-vector-layer-range", Value, CONTROL),
    ("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale", Value, ROPE),
    ("--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor", Value, ROPE),
    ("--yarn-beta-slow --yarn-beta-fast", Value, ROPE),
    ("--override-kv", Value, Refused("change the model's file instead")),
    ("-mm", Value, Here("--mmproj")),
    ("-mmu --mmproj-url", Value, Refused("download the projector, and name its file with --mmproj")),
    (
        "--context-shift",
        Nothing,
        Refused("nothing is dropped from a context: leave it out, and make the context larger (-c)"),
    ),
    ("--no-prefill-assistant", Nothing, Refused("send \"add_generation_prompt\": true in requests")),
    (
        "--skip-chat-parsing",
        Nothing,
        Refused("give --reasoning-format none and --tool-call-parser none, which does the same"),
    ),
    ("--ignore-eos -sp --special --spm-infill", Nothing, REQUEST),
    ("-l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file", Value, REQUEST),
    ("-r --reverse-prompt", Value, Refused("send \"stop\" in requests")),
    ("--dry-sequence-breaker", Value, Refused("send \"dry_sequence_breakers\" in requests")),
    ("--embd-normalize", Value, Refused("send \"embd_normalize\" in requests of /embedding")),
    ("--reasoning-budget-message", Value, Refused("the words that end reasoning cannot be chosen")),
    ("--adaptive-target --adaptive-decay", Value, ADAPTIVE),
    // Refused: what is served, to whom, and from where.
    ("--ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile", Value, TLS),
    ("--allowed-origins", Value, Refused("name the web pages with --cors-origin")),
    ("--hf-overrides", Value, Refused("change the model's file instead")),
    ("--path", Value, Refused("files are not served: use a web server, and --cors-origin with its address")),
    ("--api-prefix", Value, Refused("put a proxy in front that removes the prefix (docs/deploy.md)")),
    ("--ui-mcp-proxy --webui-mcp-proxy -ag --agent", Nothing, PAGE_TOOLS),
    ("--tools --tools-runtime --mcp-servers-config --mcp-servers-json", Value, PAGE_TOOLS),
    ("--models-dir --models-preset", Value, MODELS),
    (
        "-hff --hf-file",
        Value,
        Refused("name the quantization, -hf user/repo:QUANT, or the file's address, -m URL"),
    ),
    ("-hft --hf-token", Value, Refused("set the environment variable HF_TOKEN")),
    ("-dr --docker-repo", Value, Refused("name a model on Hugging Face: -hf user/repo:QUANT")),
    ("--embd-gemma-default --gpt-oss-20b-default --gpt-oss-120b-default", Nothing, PRESET),
    ("--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default", Nothing, PRESET),
    ("--fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default", Nothing, PRESET),
    ("--vision-gemma-4b-default --vision-gemma-12b-default", Nothing, PRESET),
    ("-cl --cache-list", Nothing, Refused("the command is: octet list")),
    ("--list-devices", Nothing, Refused("the command is: octet devices")),
    ("--completion-bash", Nothing, Refused("the command is: octet completions bash")),
];

/// Values of llama.cpp that mean the default, of its flags and Octet's.
pub(super) const DEFAULTS: &[(&str, &str)] = &[
    ("-t --threads -np --parallel -cram --cache-ram", "-1"),
    ("--adaptive-target --embd-normalize --yarn-ext-factor --yarn-attn-factor", "-1"),
    ("--yarn-beta-slow --yarn-beta-fast", "-1"),
    ("--rope-freq-base --yarn-orig-ctx", "0"),
    ("--embd-normalize", "2"),
    ("--pooling", "rank"),
];
