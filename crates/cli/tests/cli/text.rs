//! `octet run`, `tokenize`, `template` and `perplexity` on tiny models of random weights.

use crate::common::Place;
use octet_weights::{Metadata, Value as Meta};
use serde_json::{Value, json};

/// Flags for short, reproducible answers.
const GREEDY: &[&str] = &["--temp", "0", "-n", "12", "-t", "1", "-c", "512"];

fn run(place: &Place, more: &[&str]) -> crate::common::Ran {
    place.octet(&[&["run", "model.gguf"], GREEDY, more].concat())
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn greedy_answers_are_the_same_every_time() {
    let place = Place::with_model("qwen35moe", "q4_k_m");
    let first = run(&place, &["Why is the sky blue?"]).ok();
    assert!(!first.stdout.is_empty());
    assert_eq!(first.stderr, "", "no progress and no summary where standard error is no terminal");
    assert_eq!(run(&place, &["Why", "is the sky", "blue?"]).ok().stdout, first.stdout, "words are joined");
    let ran =
        place.octet_with(&[&["run", "-m", "model.gguf"], GREEDY].concat(), "Why is the sky blue?\n", &[]);
    assert_eq!(ran.ok().stdout, first.stdout, "from standard input");
    place.write("question.txt", "Why is the sky blue?");
    assert_eq!(run(&place, &["-f", "question.txt"]).ok().stdout, first.stdout, "from a file");
    assert_eq!(
        run(&place, &["-ub", "3", "Why is the sky blue?"]).ok().stdout,
        first.stdout,
        "in small steps"
    );
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let place = Place::with_model("llama", "q8_0");
    let with = |seed: &str| {
        let args = ["run", "model.gguf", "-n", "24", "-t", "1", "--temp", "1.5", "--seed", seed, "Hi"];
        place.octet(&args).ok().stdout
    };
    assert_eq!(with("7"), with("7"));
    assert_ne!(with("7"), with("8"));
}

#[test]
fn json_has_usage_timings_and_logprobs() {
    let place = Place::with_model("qwen3", "q8_0");
    let out = json_of(&run(&place, &["--json", "--logprobs", "3", "Hello"]).ok().stdout);
    assert_eq!(out["finish_reason"], "length");
    assert_eq!(out["usage"]["completion_tokens"], 12);
    assert!(out["usage"]["prompt_tokens"].as_u64().unwrap() > 5);
    let entries = out["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 12);
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(entry["logprob"], top[0]["logprob"], "greedy takes the likeliest");
    }
    assert!(out["timings"]["predicted_per_second"].as_f64().unwrap() > 0.0);
    run(&place, &["--logprobs", "3", "Hello"]).fails(2, &["--json"]);
}

#[test]
fn a_summary_is_printed_on_request() {
    let place = Place::with_model("qwen3moe", "q4_k_m");
    let ran = run(&place, &["-v", "Hello"]).ok();
    assert!(ran.stderr.contains("12 tokens (") && ran.stderr.contains("first token after"), "{}", ran.stderr);
}

#[test]
fn a_chat_keeps_and_saves_what_was_said() {
    let place = Place::with_model("qwen35moe", "q8_0");
    let typed = "Hello\n/set temp 0\n/set system Be brief.\n/set think off\n/set num_predict 3\n\"\"\"two\nlines\"\"\"\n/save chat.json\n/set\n/nonsense\n/set top_p 7\n/bye\nnever\n";
    let args = [&["run", "model.gguf", "-i", "--system", "Be brief."], GREEDY].concat();
    let ran = place.octet_with(&args, typed, &[]).ok();
    let chat = json_of(&std::fs::read_to_string(place.path("chat.json")).unwrap());
    let messages = chat["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(
        (&messages[0]["content"], &messages[3]["content"]),
        (&json!("Be brief."), &json!("two\nlines"))
    );
    for said in [&messages[2], &messages[4]] {
        assert!(
            ran.stdout.contains(said["content"].as_str().unwrap().trim_end_matches('\n')),
            "{}",
            ran.stdout
        );
    }
    for word in [
        "temperature 0\nsystem \"Be brief.\"\nkwargs {\"enable_thinking\":false}\nnum_predict 3\n",
        "no /nonsense",
        "top_p",
        "chat.json: 5 messages",
    ] {
        assert!(ran.stderr.contains(word), "no '{word}' in {}", ran.stderr);
    }
    // The first answer of a chat is the same as that of a single question.
    let once = run(&place, &["--system", "Be brief.", "Hello"]).ok().stdout;
    assert!(ran.stdout.starts_with(&once), "{once:?} {:?}", ran.stdout);

    let typed = "/load chat.json\n/regenerate\n/save again.json\n/clear\n/regenerate\n";
    let args = [&["run", "model.gguf", "-i", "-n", "3"], &GREEDY[..2], &GREEDY[4..]].concat();
    let ran = place.octet_with(&args, typed, &[]).ok();
    let again = json_of(&std::fs::read_to_string(place.path("again.json")).unwrap());
    assert_eq!(again["messages"], chat["messages"], "greedy answers are the same again");
    assert!(ran.stderr.contains("nothing to answer yet"), "{}", ran.stderr);
}

#[test]
fn a_too_long_question_is_removed_and_the_chat_continues() {
    let place = Place::with_model("qwen2", "q8_0");
    let typed = format!("{}\nHi\n/save chat.json\n", "long ".repeat(400));
    let args = ["run", "model.gguf", "-i", "-c", "128", "-n", "2", "--temp", "0", "-t", "1"];
    let ran = place.octet_with(&args, &typed, &[]).ok();
    assert!(ran.stderr.contains("--ctx-size"), "{}", ran.stderr);
    let chat = json_of(&std::fs::read_to_string(place.path("chat.json")).unwrap());
    assert_eq!(chat["messages"].as_array().unwrap().len(), 2);
    place.octet(&["run", "model.gguf", "-c", "128", &"long ".repeat(400)]).fails(1, &["--ctx-size", "128"]);
}

fn messages(place: &Place, file: &str) -> Value {
    json_of(&std::fs::read_to_string(place.path(file)).unwrap())["messages"].clone()
}

/// A chat with `typed` as its input.
fn chat(place: &Place, args: &[&str], typed: &str) -> crate::common::Ran {
    let args = [&["run", "model.gguf", "-i", "-t", "1", "--temp", "0", "-n", "2"], args].concat();
    place.octet_with(&args, typed, &[]).ok()
}

#[test]
fn a_failed_regenerate_loses_nothing() {
    let place = Place::with_model("qwen3", "q8_0");
    let long = "long ".repeat(400);
    let typed = format!("Hi\n/save before.json\n/set system {long}\n/r\n/set system\n/save after.json\n/r\n");
    let ran = chat(&place, &["-c", "128"], &typed);
    assert!(ran.stderr.contains("as it was before") && ran.stderr.contains("/clear"), "{}", ran.stderr);
    assert_eq!(messages(&place, "before.json").as_array().unwrap().len(), 2);
    assert_eq!(messages(&place, "after.json"), messages(&place, "before.json"));
}

#[test]
fn a_file_that_can_not_be_loaded_changes_nothing() {
    let place = Place::with_model("qwen3", "q8_0");
    place
        .write("bad.json", r#"{"messages": [{"role": "user", "content": "other"}, {"content": "no role"}]}"#);
    place.write("kwargs.json", r#"{"messages": [], "chat_template_kwargs": {"messages": 1}}"#);
    place.write("image.json", r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#);
    let typed = "Hi\n/save a.json\n/load bad.json\n/load kwargs.json\n/load image.json\n/load none.json\n\
                 /set kwargs {\"messages\": 1}\n/save b.json\nstill?\n";
    let ran = chat(&place, &["-c", "512"], typed);
    for word in
        ["messages[1]", "kwargs.json", "messages[0]: content[0]", "none.json", "'messages' cannot be set"]
    {
        assert!(ran.stderr.contains(word), "no '{word}' in {}", ran.stderr);
    }
    assert_eq!(messages(&place, "b.json"), messages(&place, "a.json"));
    assert!(!ran.stderr.contains("as it was before"), "the chat goes on: {}", ran.stderr);
}

#[test]
fn a_conversation_keeps_its_system_message_tools_and_variables() {
    let place = Place::with_model("qwen3", "q8_0");
    place.write(
        "with.json",
        r#"{"messages": [{"role": "system", "content": "A"}, {"role": "user", "content": "B"}],
            "tools": [{"type": "function", "function": {"name": "f"}}], "chat_template_kwargs": {"tone": "low"}}"#,
    );
    place.write("without.json", r#"[{"role": "user", "content": "B"}]"#);
    let typed = "/load with.json\n/save same.json\n/load without.json\n/save plain.json\n/load with.json\n\
                 /clear\nHi\n/save cleared.json\n";
    chat(&place, &["--system", "S", "-c", "512"], typed);
    let file = |name: &str| json_of(&std::fs::read_to_string(place.path(name)).unwrap());
    let (with, same, plain, cleared) =
        (file("with.json"), file("same.json"), file("plain.json"), file("cleared.json"));
    for part in ["messages", "tools", "chat_template_kwargs"] {
        assert_eq!(same[part], with[part], "{part}");
    }
    assert_eq!((&plain["messages"], &plain["tools"]), (&file("without.json"), &Value::Null));
    assert_eq!(plain["chat_template_kwargs"], json!({}));
    assert_eq!(cleared["messages"][0], json!({"role": "system", "content": "S"}));
    assert_eq!((&cleared["messages"][1]["content"], &cleared["tools"]), (&json!("Hi"), &Value::Null));
}

#[test]
fn saving_replaces_conversations_only() {
    let place = Place::with_model("qwen3", "q8_0");
    place.write("notes.txt", "precious");
    place.write("data.json", "{\"precious\": 1}");
    std::fs::create_dir(place.path("folder")).unwrap();
    let typed = "Hi\n/save notes.txt\n/save data.json\n/save folder\n/save none/chat.json\n/save chat.json\n\
                 And?\n/save chat.json\n";
    let ran = chat(&place, &["-c", "512"], typed);
    for name in ["notes.txt", "data.json", "folder", "none/chat.json"] {
        assert!(ran.stderr.contains(&format!("error: {name}: ")), "{name}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains(".tmp"), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(place.path("notes.txt")).unwrap(), "precious");
    assert_eq!(std::fs::read_to_string(place.path("data.json")).unwrap(), "{\"precious\": 1}");
    assert_eq!(messages(&place, "chat.json").as_array().unwrap().len(), 4, "the second one counts");
    let mut left: Vec<_> =
        std::fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["chat.json", "data.json", "folder", "model.gguf", "notes.txt"]);
}

#[test]
fn a_byte_that_is_no_text_costs_a_line_and_not_the_chat() {
    let place = Place::with_model("qwen3", "q8_0");
    let args = ["run", "model.gguf", "-i", "-t", "1", "--temp", "0", "-n", "2", "-c", "512"];
    let ran = place.octet_with(&args, b"Hi\ncaf\xe9\nAnd?\n/save chat.json\n", &[]).ok();
    assert!(ran.stderr.contains("not UTF-8"), "{}", ran.stderr);
    assert_eq!(messages(&place, "chat.json").as_array().unwrap().len(), 4);
}

#[test]
fn a_full_context_is_reported() {
    let place = Place::with_model("qwen3", "q8_0");
    let full = "the context of 48 tokens is full";
    let ran = chat(&place, &["-c", "48", "-n", "-1"], "Hi\nAnd?\n");
    assert!(ran.stderr.contains(full) && ran.stderr.contains("/clear"), "{}", ran.stderr);
    let ran = place.octet(&["run", "model.gguf", "-t", "1", "--temp", "0", "-c", "48", "Hi"]).ok();
    assert!(ran.stderr.contains(full) && ran.stderr.contains("--ctx-size"), "{}", ran.stderr);
    assert!(!run(&place, &["Hi"]).ok().stderr.contains("full"));
}

#[test]
fn a_conversation_that_ends_with_a_question_needs_no_prompt() {
    let place = Place::with_model("qwen3", "q8_0");
    place.write("asks.json", r#"[{"role": "user", "content": "Hi"}]"#);
    let answer = run(&place, &["Hi"]).ok().stdout;
    assert_eq!(run(&place, &["--messages", "asks.json"]).ok().stdout, answer);
    chat(&place, &["--messages", "asks.json", "-c", "512"], "/save chat.json\n");
    assert_eq!(messages(&place, "chat.json").as_array().unwrap().len(), 2);
    // A conversation that ends with an answer needs a prompt.
    run(&place, &["--messages", "chat.json"]).fails(2, &["prompt is empty"]);
    let more = run(&place, &["--messages", "chat.json", "And?"]).ok().stdout;
    assert!(!more.is_empty());
}

#[test]
fn input_that_is_not_utf8_is_refused() {
    let place = Place::with_model("qwen3", "q8_0");
    let parts =
        r#"[{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "x"}}]"#;
    place.write("image.json", &format!(r#"[{{"role": "user", "content": {parts}}}]"#));
    let ran = run(&place, &["--messages", "image.json"]);
    ran.fails(1, &["image.json", "messages[0]", "content[1]", "image_url"]);
}

#[test]
fn several_files_are_one_prompt() {
    let place = Place::with_model("qwen3", "q8_0");
    place.write("a.txt", "one");
    place.write("b.txt", "two");
    let both = run(&place, &["-f", "a.txt", "-f", "b.txt", "--json"]).ok().stdout;
    let typed = run(&place, &["one\n\ntwo", "--json"]).ok().stdout;
    assert_eq!(json_of(&both)["content"], json_of(&typed)["content"]);
    // Standard input follows the prompt: `git diff | octet run MODEL 'Review this.'`
    let with = |more: &[&'static str]| [&["run", "model.gguf"], GREEDY, &["--json"], more].concat();
    let piped = place.octet_with(&with(&["one"]), "two\n", &[]).ok().stdout;
    assert_eq!(json_of(&piped)["content"], json_of(&typed)["content"]);
    let all = place.octet_with(&with(&["zero", "-f", "a.txt"]), "two\n", &[]).ok().stdout;
    let typed = run(&place, &["zero\n\none\n\ntwo", "--json"]).ok().stdout;
    assert_eq!(json_of(&all)["content"], json_of(&typed)["content"]);
    let huge = std::fs::File::create(place.path("huge.txt")).unwrap();
    huge.set_len((64 << 20) + 1).unwrap();
    run(&place, &["-f", "huge.txt"]).fails(1, &["huge.txt", "64 MiB"]);
}

#[test]
fn words_after_two_dashes_are_text() {
    let place = Place::with_model("qwen3", "q8_0");
    let ids = |text: &[&str]| {
        let args = [&["tokenize", "model.gguf", "--ids-only", "--"], text].concat();
        place.octet(&args).ok().stdout
    };
    let shown = place.octet(&["tokenize", "model.gguf", "--json", "--", "-hf", "-ub=1"]).ok().stdout;
    let text: String =
        json_of(&shown).as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap().to_string()).collect();
    assert_eq!(text, "-hf -ub=1");
    assert_ne!(ids(&["-hf"]), ids(&["--hf"]));
}

#[test]
fn settings_out_of_range_are_found_before_the_model_is_opened() {
    let place = Place::new();
    for (args, word) in [
        (["--temp", "nan"], "--temp"),
        (["--temp", "-1"], "temperature"),
        (["--top-k", "-2"], "--top-k"),
        (["--top-p", "-1"], "top_p"),
        (["--seed", "-2"], "--seed"),
        (["--predict", "-7"], "--predict"),
        (["--repeat-last-n", "-5"], "--repeat-last-n"),
        (["--logit-bias", "x"], "--logit-bias"),
        (["--logit-bias", "1=1000"], "logit_bias"),
    ] {
        place.octet(&["run", "missing.gguf", args[0], args[1], "Hi"]).fails(2, &[word]);
    }
    let fine = ["run", "missing.gguf", "--top-k", "-1", "--seed", "-1", "-n", "-1", "Hi"];
    place.octet(&fine).fails(1, &["missing.gguf"]);
}

#[test]
fn a_bias_bans_a_token() {
    let place = Place::with_model("qwen3", "q8_0");
    let first = |more: &[&str]| {
        let args = [&["--json", "--logprobs", "0", "Hello"], more].concat();
        json_of(&run(&place, &args).ok().stdout)["logprobs"]["content"][0]["id"].as_u64().unwrap()
    };
    let likeliest = first(&[]);
    assert_ne!(first(&["--logit-bias", &format!("{likeliest}=-inf")]), likeliest);
    assert_eq!(first(&["--logit-bias", "7=100", "--logit-bias", "8=-inf"]), 7);
    run(&place, &["--logit-bias", "99999999=1", "Hello"]).fails(1, &["99999999", "vocabulary"]);
}

#[test]
fn a_random_seed_is_reported() {
    let place = Place::with_model("llama", "q8_0");
    let args = ["run", "model.gguf", "-n", "12", "-t", "1", "--temp", "1.5", "--json", "Hi"];
    let first = json_of(&place.octet(&args).ok().stdout);
    let seed = first["seed"].as_u64().unwrap().to_string();
    let again = json_of(&place.octet(&[&args[..], &["--seed", &seed]].concat()).ok().stdout);
    assert_eq!((&again["content"], &again["seed"]), (&first["content"], &first["seed"]));
}

#[test]
fn texts_go_on_without_a_template() {
    let place = Place::with_model("llama", "f32");
    let raw = run(&place, &["--raw", "Once upon a time"]).ok().stdout;
    assert_ne!(raw, run(&place, &["Once upon a time"]).ok().stdout);
    run(&place, &["--raw", "--system", "Be brief.", "Once"]).fails(2, &["--raw", "--system"]);
}

/// A tiny model whose words begin with SentencePiece's space; byte tokens for all else.
fn sentence_piece(place: &Place) {
    let mut model = octet_synth::tiny("llama", "q8_0".parse().unwrap()).unwrap();
    let rows = model.info("token_embd.weight").unwrap().shape[0];
    let (tokens, types) = (0..rows)
        .map(|i| match i {
            0 => ("<unk>".to_string(), 2),
            1 => ("<s>".into(), 3),
            2 => ("</s>".into(), 3),
            3..259 => (format!("<0x{:02X}>", i - 3), 6),
            _ => (format!("▁w{i}"), 1),
        })
        .unzip();
    let mut metadata = Metadata::new("model.gguf");
    for (key, value) in model.metadata.iter().filter(|(k, _)| !k.starts_with("tokenizer.")) {
        metadata.insert(key, value.clone());
    }
    metadata.insert("tokenizer.ggml.model", Meta::Str("llama".into()));
    metadata.insert("tokenizer.ggml.tokens", Meta::Strs(tokens));
    metadata.insert("tokenizer.ggml.token_type", Meta::Ints(types));
    metadata.insert("tokenizer.ggml.scores", Meta::Floats(vec![0.0; rows]));
    metadata.insert("tokenizer.ggml.eos_token_id", Meta::U64(2));
    model.metadata = metadata;
    octet_synth::write(&model, &place.path("model.gguf"), true, &mut |_, _| {}).unwrap();
}

#[test]
fn a_continued_text_keeps_its_first_space() {
    let place = Place::new();
    sentence_piece(&place);
    let text = run(&place, &["--raw", "--logit-bias", "300=100", "-n", "2", "Hello"]).ok().stdout;
    assert_eq!(text, " w300 w300\n");
    // This model has no template either.
    let ran = run(&place, &["Hello"]).fails(1, &["no chat template", "--chat-template", "--raw"]);
    assert_eq!(ran.stdout, "");
    place.write("bad.jinja", "{% if %}");
    let ran = run(&place, &["--chat-template", "bad.jinja", "Hello"]).fails(1, &["bad.jinja"]);
    assert!(!ran.stderr.contains("--raw"), "{}", ran.stderr);
}

#[test]
fn without_a_recommendation_sampling_is_moderate() {
    let place = Place::with_model("qwen3", "q8_0");
    let args = ["run", "model.gguf", "-i", "-t", "1", "-c", "512"];
    let ran = place.octet_with(&args, "/set\n", &[]).ok();
    assert!(ran.stderr.contains("temperature 0.8  top_k 40  top_p 0.95  min_p 0.05"), "{}", ran.stderr);
    let help = place.octet(&["run", "--help"]).ok().stdout;
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Default: the model's recommendation; 0.8 if it has none"), "{help}");
}

#[test]
fn reasoning_is_no_part_of_a_piped_answer() {
    let place = Place::with_model("qwen3", "q8_0");
    // Everything that the model generates after this prompt is reasoning.
    place
        .write("thinks.jinja", "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}");
    let thinks = ["--chat-template", "thinks.jinja"];
    let out = json_of(&run(&place, &[&thinks[..], &["--json", "Hello"]].concat()).ok().stdout);
    assert_eq!(out["content"], "");
    let first: String = out["reasoning_content"].as_str().unwrap().chars().take(1).collect();
    // A piped answer contains the answer alone.
    let piped = run(&place, &[&thinks[..], &["Hello"]].concat()).ok();
    assert_eq!(piped.stdout, "");
    assert!(!piped.stderr.contains(out["reasoning_content"].as_str().unwrap()), "{}", piped.stderr);
    let verbose = run(&place, &[&thinks[..], &["--verbose", "Hello"]].concat()).ok();
    assert_eq!(verbose.stdout, "");
    assert!(verbose.stderr.contains(out["reasoning_content"].as_str().unwrap()), "{}", verbose.stderr);
    let hidden = run(&place, &[&thinks[..], &["--hide-thinking", "Hello"]].concat()).ok();
    assert_eq!(hidden.stdout, "");
    assert!(hidden.stderr.contains("thinking"), "{}", hidden.stderr);
    // Stop texts do not count in it.
    let whole = run(&place, &[&thinks[..], &["--json", "--stop", &first, "Hello"]].concat()).ok();
    assert_eq!(json_of(&whole.stdout)["reasoning_content"], out["reasoning_content"]);
    let hidden = run(&place, &[&thinks[..], &["--hide-thinking", "--json", "Hello"]].concat()).ok();
    assert_eq!(json_of(&hidden.stdout)["reasoning_content"], Value::Null);
}

#[test]
fn stop_strings_end_the_answer() {
    let place = Place::with_model("llama", "q8_0");
    let all = json_of(&run(&place, &["--json", "Hi"]).ok().stdout);
    let text = all["content"].as_str().unwrap();
    let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let cut = json_of(&run(&place, &["--json", "--stop", &stop, "Hi"]).ok().stdout);
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["content"].as_str(), text.split(&stop).next());
}

#[test]
fn wrong_settings_are_named() {
    let place = Place::with_model("qwen2", "q8_0");
    run(&place, &["--top-p", "1.5", "Hi"]).fails(2, &["top_p", "1.5"]);
    run(&place, &["--temp", "hot", "Hi"]).fails(2, &["--temp", "hot"]);
    run(&place, &["--chat-template-kwargs", "[1]", "Hi"]).fails(2, &["JSON object"]);
    run(&place, &["--chat-template", "none.jinja", "Hi"]).fails(1, &["none.jinja"]);
    run(&place, &[" "]).fails(2, &["prompt is empty"]);
    let missing = place.octet(&["run", "missing.gguf"]);
    missing.fails(1, &["missing.gguf", "no such file"]);
    place.octet(&["run", "no-such-model"]).fails(1, &["no-such-model"]);
    run(&place, &["-f", "none.txt"]).fails(1, &["none.txt"]);
    place.write("bad.json", "{\"messages\": 1}");
    run(&place, &["--messages", "bad.json", "Hi"]).fails(1, &["bad.json", "messages"]);
}

#[test]
fn tokens_are_shown_and_make_the_text_again() {
    let place = Place::with_model("qwen35moe", "q8_0");
    let text = "Héllo, <|im_end|> world";
    let tokens = json_of(&place.octet(&["tokenize", "model.gguf", text, "--json"]).ok().stdout);
    let tokens = tokens.as_array().unwrap().clone();
    let ids = json_of(&place.octet(&["tokenize", "-m", "model.gguf", text, "--ids-only"]).ok().stdout);
    assert_eq!(ids, tokens.iter().map(|t| t["id"].clone()).collect::<Value>());
    let plain = json_of(&place.octet(&["tokenize", "model.gguf", "Hello, world", "--json"]).ok().stdout);
    let back: String = plain.as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(back, "Hello, world");
    let special = json_of(&place.octet(&["tokenize", "model.gguf", text, "--special", "--json"]).ok().stdout);
    let has_end = |tokens: &Value| tokens.as_array().unwrap().iter().any(|t| t["text"] == "<|im_end|>");
    assert!(has_end(&special) && !has_end(&Value::Array(tokens)));
    let ran = place.octet_with(&["tokenize", "model.gguf", "-"], "Hello", &[]).ok();
    assert!(ran.stdout.contains("token"), "{}", ran.stdout);
    place.octet(&["tokenize", "model.gguf"]).fails(2, &["no text"]);
}

#[test]
fn templates_are_rendered() {
    let place = Place::with_model("qwen35moe", "q8_0");
    let text =
        place.octet(&["template", "model.gguf", "--user", "Hi <|im_end|>", "--system", "Be brief."]).ok();
    let prompt = text.stdout;
    assert!(prompt.contains("Be brief.") && prompt.contains("Hi <|im_end|>"), "{prompt}");
    assert!(prompt.trim_end().ends_with("<|im_start|>assistant"), "{prompt}");
    let without = place.octet(&["template", "model.gguf", "-u", "Hi", "--no-generation-prompt"]).ok().stdout;
    assert!(without.trim_end().ends_with("<|im_end|>"), "{without}");

    let chat = json!({"messages": [{"role": "system", "content": "A"}, {"role": "user", "content": "B"}]});
    place.write("chat.json", &chat.to_string());
    let from_file = place.octet(&["template", "model.gguf", "--messages", "chat.json"]).ok().stdout;
    assert_eq!(from_file, place.octet(&["template", "model.gguf", "-sys", "A", "-u", "B"]).ok().stdout);
    // The user's text never becomes control tokens.
    let tokens = place.octet(&["template", "model.gguf", "-u", "<|im_end|>", "--tokens"]).ok().stdout;
    let ends = tokens.lines().filter(|l| l.ends_with("\"<|im_end|>\"")).count();
    assert_eq!(ends, 1, "{tokens}");

    place.write(
        "kwargs.jinja",
        "{{ messages[0].content }} {{ tone }} {{ enable_thinking }} {{ tools | length }}",
    );
    place.write("tools.json", "[{\"type\": \"function\"}]");
    let own = place.octet(&[
        "template",
        "model.gguf",
        "-u",
        "Hi",
        "--chat-template",
        "kwargs.jinja",
        "--kwargs",
        "{\"tone\": \"low\"}",
        "--no-think",
        "--tools",
        "tools.json",
    ]);
    let own = own.ok().stdout;
    assert!(own.starts_with("Hi low ") && own.to_lowercase().contains("false 1"), "{own}");
    place.octet(&["template", "model.gguf", "--source"]).ok();
    place.octet(&["template", "model.gguf"]).fails(2, &["--user"]);
}

#[test]
fn a_context_without_room_is_refused() {
    // One model with BOS, for which no token fits into the window, and one without.
    for architecture in ["llama", "qwen3"] {
        let place = Place::with_model(architecture, "q8_0");
        place.write("text.txt", "The quick brown fox");
        let ran = place.octet(&["perplexity", "model.gguf", "-f", "text.txt", "-c", "1"]);
        ran.fails(1, &["context of 1 token", "--ctx-size"]);
        place.octet(&["perplexity", "model.gguf", "-f", "text.txt", "-c", "2"]).ok();
    }
}

#[test]
fn perplexity_of_random_weights_is_about_the_vocabulary() {
    let place = Place::with_model("qwen3", "f32");
    place.write("text.txt", &"The quick brown fox jumps over the lazy dog. ".repeat(4));
    let whole = json_of(&place.octet(&["perplexity", "model.gguf", "-f", "text.txt", "--json"]).ok().stdout);
    let ppl = whole["perplexity"].as_f64().unwrap();
    assert!(ppl > 100.0 && ppl < 3000.0, "{whole}");
    let windows = ["perplexity", "model.gguf", "-f", "text.txt", "--json", "-c", "16"];
    let windows = json_of(&place.octet(&windows).ok().stdout);
    assert!(windows["tokens"].as_u64() < whole["tokens"].as_u64(), "the first of each window does not count");
    let text = place.octet(&["perplexity", "model.gguf", "-f", "text.txt"]).ok().stdout;
    assert!(text.starts_with("perplexity "), "{text}");
    let both = ["perplexity", "model.gguf", "-f", "text.txt", "--json", "--kl-divergence"];
    let kl = &json_of(&place.octet(&both).ok().stdout)["kl_divergence"];
    assert_eq!(
        (kl["maximum"].as_f64(), kl["same_top"].as_f64()),
        (Some(0.0), Some(1.0)),
        "f32 is exact: {kl}"
    );
    place.octet(&[&both[..], &["--exact"]].concat()).fails(2, &["--kl-divergence", "--exact"]);
    place.write("empty.txt", "");
    place.octet(&["perplexity", "model.gguf", "-f", "empty.txt"]).fails(1, &["empty.txt", "too short"]);
}

#[test]
fn eight_bit_activations_change_little() {
    let place = Place::with_model("qwen35moe", "q4_k_m");
    place.write("text.txt", &"The quick brown fox jumps over the lazy dog. ".repeat(4));
    let both = ["perplexity", "model.gguf", "-f", "text.txt", "--kl-divergence", "-c", "32"];
    let kl = &json_of(&place.octet(&[&both[..], &["--json"]].concat()).ok().stdout)["kl_divergence"];
    let mean = kl["mean"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.01, "{kl}");
    let kv = [&both[..], &["--json", "--exact", "-ctk", "q8_0", "-ctv", "q8_0"]].concat();
    let kl = &json_of(&place.octet(&kv).ok().stdout)["kl_divergence"];
    let mean = kl["mean"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 2e-3, "quantised keys and values alone: {kl}");
    let text = place.octet(&both).ok().stdout;
    assert!(text.contains("KL divergence") && text.contains("same top token"), "{text}");
}

#[test]
fn perplexity_counts_experts() {
    let place = Place::with_model("qwen35moe", "q4_k_m");
    place.write("text.txt", &"The quick brown fox jumps over the lazy dog. ".repeat(4));
    let args = ["perplexity", "model.gguf", "-f", "text.txt", "-c", "32", "--experts"];
    let json = json_of(&place.octet(&[&args[..], &["--json"]].concat()).ok().stdout);
    let experts = &json["experts"];
    assert_eq!((&experts["experts"], &experts["experts_per_token"]), (&8.into(), &3.into()));
    let layers = experts["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 4);
    for l in layers {
        // every predicted token is computed from one that was read; the last of each window is not
        let counts: u64 = l["counts"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(
            (l["tokens"].as_u64(), counts),
            (json["tokens"].as_u64(), 3 * json["tokens"].as_u64().unwrap())
        );
    }
    let text = place.octet(&args).ok().stdout;
    assert!(text.contains("8 experts, 3 for a token") && text.contains("of all 32: "), "{text}");
    let dense = Place::with_model("qwen3", "f32");
    dense.write("text.txt", "The quick brown fox");
    dense.octet(&args).fails(1, &["model.gguf", "no experts"]);
}

#[test]
fn damaged_models_are_named_by_every_command() {
    let place = Place::with_model("llama", "q8_0");
    let whole = std::fs::read(place.path("model.gguf")).unwrap();
    std::fs::write(place.path("short.gguf"), &whole[..whole.len() / 2]).unwrap();
    for args in [
        &["run", "short.gguf", "Hi"][..],
        &["tokenize", "short.gguf", "Hi"],
        &["template", "short.gguf", "-u", "Hi"],
        &["perplexity", "short.gguf", "-f", "short.gguf"],
    ] {
        let ran = place.octet(args).fails(1, &["error: ", "short.gguf"]);
        assert!(ran.stdout.is_empty() && !ran.stderr.contains("panicked"), "{}", ran.stderr);
    }
}
