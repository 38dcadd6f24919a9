//! Prints the results of `octet bench --url` in four formats: one endpoint, or two side by side.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::load::{Level, Work};
use super::stats::Summary;
use crate::bench::Output;
use crate::bench::format::cell;
use crate::units::count;

/// One endpoint at one concurrency.
pub struct Row<'a> {
    pub url: &'a str,
    pub model: &'a str,
    pub work: &'a Work,
    pub concurrency: usize,
    pub level: Level,
}

/// A quantity measured per request or token, in ms.
struct Measure {
    name: &'static str,
    key: &'static str,
    values: fn(&Level) -> Vec<f64>,
}

/// In the order of columns and lines.
const MEASURES: [Measure; 4] = [
    Measure { name: "TTFT", key: "ttft_ms", values: |l| l.samples.iter().map(|s| 1e3 * s.ttft()).collect() },
    Measure {
        name: "TPOT",
        key: "tpot_ms",
        values: |l| l.samples.iter().filter_map(|s| s.tpot()).map(|t| 1e3 * t).collect(),
    },
    Measure {
        name: "ITL",
        key: "itl_ms",
        values: |l| l.samples.iter().flat_map(|s| s.gaps()).map(|t| 1e3 * t).collect(),
    },
    Measure {
        name: "latency",
        key: "latency_ms",
        values: |l| l.samples.iter().map(|s| 1e3 * s.latency()).collect(),
    },
];

impl Measure {
    fn of(&self, level: &Level) -> Option<Summary> {
        Summary::of((self.values)(level))
    }
}

impl Level {
    fn output_tokens(&self) -> f64 {
        self.samples.iter().map(|s| s.tokens as f64).sum()
    }

    /// `None` if nothing arrived.
    fn per_second(&self, n: f64) -> Option<f64> {
        (n > 0.0 && !self.duration.is_zero()).then(|| n / self.duration.as_secs_f64())
    }

    fn tokens_per_second(&self) -> Option<f64> {
        self.per_second(self.output_tokens())
    }

    fn requests_per_second(&self) -> Option<f64> {
        self.per_second(self.samples.len() as f64)
    }

    fn has_usage(&self) -> bool {
        self.samples.iter().all(|s| s.has_usage)
    }
}

impl Row<'_> {
    fn test(&self) -> String {
        format!("pp{} tg{}", self.work.n_prompt, self.work.n_gen)
    }

    /// All fields. `nested` adds structured values; `first` is the row to compare with.
    fn fields(&self, first: Option<&Row>, nested: bool) -> Map<String, Value> {
        let l = &self.level;
        let mut fields = Map::new();
        let mut put = |key: &str, value: Value| fields.insert(key.to_string(), value);
        put("octet_version", env!("CARGO_PKG_VERSION").into());
        put("url", self.url.into());
        put("model", self.model.into());
        put("n_prompt", self.work.n_prompt.into());
        put("n_gen", self.work.n_gen.into());
        put("n_shared_prefix", self.work.shared.into());
        put("concurrency", self.concurrency.into());
        put("completed", l.samples.len().into());
        put("failed", l.failed().into());
        put("duration_s", l.duration.as_secs_f64().into());
        put("prompt_tokens_mean", mean(l, |s| s.prompt_tokens).into());
        put("cached_tokens_mean", mean(l, |s| s.cached_tokens).into());
        put("output_tokens", (l.output_tokens() as u64).into());
        put("output_tokens_counted_by", if l.has_usage() { "usage" } else { "pieces" }.into());
        put("output_tokens_per_second", l.tokens_per_second().into());
        put("requests_per_second", l.requests_per_second().into());
        for measure in &MEASURES {
            let of = measure.of(l).map(Summary::named);
            for (i, statistic) in ["mean", "median", "p99"].into_iter().enumerate() {
                put(&format!("{}_{statistic}", measure.key), of.map(|s| s[i].1).into());
            }
        }
        if nested {
            let errors = l.failures.iter().map(|(why, n)| json!({"message": why, "count": n}));
            put("errors", errors.collect());
            if let Some(first) = first {
                put("ratio_to_first", self.ratios(first));
            }
        } else {
            let errors: Vec<String> = l.failures.iter().map(|(why, n)| format!("{n} x {why}")).collect();
            put("errors", errors.join("; ").into());
        }
        fields
    }

    /// Ratios to the first row.
    fn ratios(&self, first: &Row) -> Value {
        let (this, that) = (self.fields(None, false), first.fields(None, false));
        let ratio = |(key, value): (&String, &Value)| {
            Some((key.clone(), Value::from(value.as_f64()? / that[key].as_f64()?)))
        };
        let measured = |key: &str| key.contains("_ms_") || key.ends_with("_per_second");
        Value::Object(this.iter().filter(|(key, _)| measured(key)).filter_map(ratio).collect())
    }
}

/// Mean over the samples that report a value.
fn mean(level: &Level, of: fn(&crate::endpoint::stream::Sample) -> Option<u64>) -> Option<f64> {
    let counts: Option<Vec<f64>> = level.samples.iter().map(|s| of(s).map(|n| n as f64)).collect();
    Summary::of(counts?).map(|s| s.mean)
}

/// Prints rows as they are measured: all endpoints at one concurrency together.
pub struct Printer {
    form: Output,
    printed: usize,
}

impl Printer {
    pub fn new(form: Output) -> Self {
        Self { form, printed: 0 }
    }

    pub fn rows(&mut self, out: &mut dyn Write, rows: &[Row]) -> io::Result<()> {
        match (self.form, rows) {
            (Output::Md, [first, second]) => self.side_by_side(out, first, second)?,
            (Output::Md, rows) => rows.iter().try_for_each(|row| self.markdown(out, row))?,
            _ => {
                for (i, row) in rows.iter().enumerate() {
                    self.record(out, row, rows.first().filter(|_| i > 0))?;
                }
            }
        }
        out.flush()
    }

    pub fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.form == Output::Json { writeln!(out, "\n]") } else { Ok(()) }
    }

    fn record(&mut self, out: &mut dyn Write, row: &Row, first: Option<&Row>) -> io::Result<()> {
        let fields = row.fields(first, self.form != Output::Csv);
        match self.form {
            Output::Json => {
                let start = if self.printed == 0 { "[\n" } else { ",\n" };
                write!(out, "{start}{:#}", Value::Object(fields))?;
            }
            Output::Csv => {
                if self.printed == 0 {
                    writeln!(out, "{}", fields.keys().map(String::as_str).collect::<Vec<_>>().join(","))?;
                }
                writeln!(out, "{}", fields.values().map(cell).collect::<Vec<_>>().join(","))?;
            }
            Output::Jsonl | Output::Md => writeln!(out, "{}", Value::Object(fields))?,
        }
        self.printed += 1;
        Ok(())
    }

    fn markdown(&mut self, out: &mut dyn Write, row: &Row) -> io::Result<()> {
        const WIDTHS: [usize; 7] = [12, 11, 7, 8, 6, 7, 7];
        if self.printed == 0 {
            let names = ["test", "concurrency", "done", "tokens/s", "req/s", "TTFT", "ITL"];
            line(out, &WIDTHS, names.map(String::from))?;
            rule(out, &WIDTHS)?;
        }
        self.printed += 1;
        let l = &row.level;
        let [ttft, _, itl, _] = MEASURES.map(|m| number(m.of(l).map(|s| s.median), 1));
        let done = format!("{}/{}", l.samples.len(), l.samples.len() + l.failed());
        let rates = [l.tokens_per_second(), l.requests_per_second()].map(|r| number(r, 2));
        let [tokens, requests] = rates;
        line(out, &WIDTHS, [row.test(), row.concurrency.to_string(), done, tokens, requests, ttft, itl])
    }

    fn side_by_side(&mut self, out: &mut dyn Write, first: &Row, second: &Row) -> io::Result<()> {
        const WIDTHS: [usize; 6] = [13, 11, 14, 9, 9, 5];
        if self.printed == 0 {
            let names = ["test", "concurrency", "measure", "first", "second", "ratio"];
            line(out, &WIDTHS, names.map(String::from))?;
            rule(out, &WIDTHS)?;
        }
        self.printed += 1;
        let mut put = |measure: &str, values: [String; 3]| {
            let [a, b, ratio] = values;
            line(out, &WIDTHS, [first.test(), first.concurrency.to_string(), measure.into(), a, b, ratio])
        };
        let (a, b) = (&first.level, &second.level);
        let one = |a: Option<f64>, b: Option<f64>, digits| {
            let ratio = a.zip(b).and_then(|(a, b)| (a > 0.0).then(|| b / a));
            [number(a, digits), number(b, digits), number(ratio, 2)]
        };
        put("tokens/s", one(a.tokens_per_second(), b.tokens_per_second(), 2))?;
        put("req/s", one(a.requests_per_second(), b.requests_per_second(), 2))?;
        for measure in &MEASURES {
            let (a, b) = (measure.of(a).map(Summary::named), measure.of(b).map(Summary::named));
            for (i, statistic) in ["mean", "median", "p99"].into_iter().enumerate() {
                let of = |s: &Option<[(&str, f64); 3]>| s.map(|s| s[i].1);
                put(&format!("{} {statistic}", measure.name), one(of(&a), of(&b), 1))?;
            }
        }
        let done = |l: &Level| format!("{}/{}", l.samples.len(), l.samples.len() + l.failed());
        put("done", [done(a), done(b), String::new()])
    }
}

fn line<const N: usize>(out: &mut dyn Write, widths: &[usize; N], cells: [String; N]) -> io::Result<()> {
    let cells: Vec<String> = cells.iter().zip(widths).map(|(c, &w)| format!("{c:>w$}")).collect();
    writeln!(out, "| {} |", cells.join(" | "))
}

fn rule(out: &mut dyn Write, widths: &[usize]) -> io::Result<()> {
    let cells: Vec<String> = widths.iter().map(|&w| "-".repeat(w - 1) + ":").collect();
    writeln!(out, "| {} |", cells.join(" | "))
}

fn number(x: Option<f64>, digits: usize) -> String {
    x.map_or("-".into(), |x| format!("{x:.digits$}"))
}

/// Prints all times of one endpoint: the table that is printed while it is measured has the medians of two.
fn times(out: &mut dyn Write, rows: &[Vec<Row>]) -> io::Result<()> {
    const WIDTHS: [usize; 6] = [13, 11, 9, 9, 9, 9];
    let names = ["test", "concurrency", "ms", "mean", "median", "p99"];
    writeln!(out)?;
    line(out, &WIDTHS, names.map(String::from))?;
    rule(out, &WIDTHS)?;
    for (row, measure) in rows.iter().flatten().flat_map(|row| MEASURES.iter().map(move |m| (row, m))) {
        let of = measure.of(&row.level).map(Summary::named);
        let [mean, median, most] = [0, 1, 2].map(|i| number(of.map(|s| s[i].1), 1));
        let concurrency = row.concurrency.to_string();
        line(out, &WIDTHS, [row.test(), concurrency, measure.name.into(), mean, median, most])?;
    }
    Ok(())
}

/// Prints what stands below the table: further times, the endpoints, actual sizes of prompts and answers, and failures. On a terminal, in
/// lines that fit.
pub fn footer(out: &mut dyn Write, rows: &[Vec<Row>]) -> io::Result<()> {
    let mut text = Vec::new();
    write_footer(&mut text, rows)?;
    let text = String::from_utf8_lossy(&text);
    out.write_all(crate::wrap::on(&console::Term::stdout(), &text).as_bytes())
}

fn write_footer(out: &mut dyn Write, rows: &[Vec<Row>]) -> io::Result<()> {
    let Some(names) = rows.first() else { return Ok(()) };
    let what = match names.len() {
        1 => {
            times(out, rows)?;
            "TTFT and ITL of the first table are medians"
        }
        _ => "the ratio is second / first",
    };
    writeln!(out, "\nTimes are in ms; {what}; throughput is of all requests of a row together.")?;
    let title = |i: usize| if names.len() > 1 { ["first: ", "second: "][i.min(1)] } else { "" };
    for (i, name) in names.iter().enumerate() {
        writeln!(out, "{}{}, model {}", title(i), name.url, crate::endpoint::stream::line(name.model))?;
        for row in rows.iter().filter_map(|r| r.get(i)) {
            let l = &row.level;
            if let Some(text) = sizes(l) {
                writeln!(out, "  {}, concurrency {}: {text}", row.test(), row.concurrency)?;
            }
        }
        for row in rows.iter().filter_map(|r| r.get(i)) {
            for (why, n) in &row.level.failures {
                let failed = count(*n, "request");
                writeln!(out, "  {}, concurrency {}: {failed} failed: {why}", row.test(), row.concurrency)?;
            }
        }
        if rows.iter().filter_map(|r| r.get(i)).any(|r| !r.level.has_usage()) {
            writeln!(
                out,
                "  Not all streams reported their usage: for those, a piece of the stream counts as a token."
            )?;
        }
    }
    Ok(())
}

/// `prompts of 514 tokens, 0 of them cached; answers of 128.0`.
fn sizes(l: &Level) -> Option<String> {
    if l.samples.is_empty() {
        return None;
    }
    let answers = format!("answers of {:.1} tokens", l.output_tokens() / l.samples.len() as f64);
    let prompts = mean(l, |s| s.prompt_tokens).map(|n| {
        let cached =
            mean(l, |s| s.cached_tokens).map_or(String::new(), |c| format!(", {c:.0} of them cached"));
        format!("prompts of {n:.0} tokens{cached}; ")
    });
    Some(prompts.unwrap_or_default() + &answers)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::endpoint::stream::Sample;

    fn work() -> Work {
        Work { n_prompt: 512, n_gen: 4, shared: 0, extra: Map::new(), run: 0 }
    }

    fn row<'a>(work: &'a Work, url: &'a str, step_ms: u64) -> Row<'a> {
        let sample = Sample {
            arrivals: (1..=4).map(|i| Duration::from_millis(i * step_ms)).collect(),
            tokens: 4,
            has_usage: true,
            prompt_tokens: Some(500),
            cached_tokens: Some(0),
        };
        let duration = Duration::from_millis(8 * step_ms);
        let level = Level {
            samples: vec![sample.clone(), sample],
            failures: vec![("429: full".into(), 3)],
            duration,
        };
        Row { url, model: "m", work, concurrency: 2, level }
    }

    fn printed(form: Output, rows: &[Row]) -> String {
        let (mut out, mut printer) = (Vec::new(), Printer::new(form));
        printer.rows(&mut out, rows).unwrap();
        printer.end(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_what_was_measured() {
        let work = work();
        let rows = [row(&work, "http://a/v1", 10), row(&work, "http://b/v1", 20)];
        let json: Value = serde_json::from_str(&printed(Output::Json, &rows)).unwrap();
        let first = &json[0];
        let near = |key: &str, expected: f64| {
            let got = first[key].as_f64().unwrap();
            assert!((got - expected).abs() < 1e-9, "{key}: {got}");
        };
        near("ttft_ms_mean", 10.0);
        near("tpot_ms_median", 10.0);
        near("itl_ms_p99", 10.0);
        near("latency_ms_mean", 40.0);
        near("output_tokens_per_second", 100.0);
        near("requests_per_second", 25.0);
        assert_eq!((&first["completed"], &first["failed"]), (&json!(2), &json!(3)));
        assert_eq!(first["errors"], json!([{"message": "429: full", "count": 3}]));
        assert!(first.get("ratio_to_first").is_none());
        let ratios = &json[1]["ratio_to_first"];
        assert!((ratios["ttft_ms_p99"].as_f64().unwrap() - 2.0).abs() < 1e-9, "{ratios}");
        assert!((ratios["output_tokens_per_second"].as_f64().unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn tables_line_up() {
        let work = work();
        let one = printed(Output::Md, &[row(&work, "http://a/v1", 10)]);
        let two = printed(Output::Md, &[row(&work, "http://a/v1", 10), row(&work, "http://b/v1", 20)]);
        for table in [&one, &two] {
            let widths: Vec<usize> = table.lines().map(str::len).collect();
            assert!(widths[0] <= 80 && widths.iter().all(|w| *w == widths[0]), "{table}");
        }
        assert!(one.contains(" 10.0 ") && one.contains("2/5") && one.contains("100.00"), "{one}");
        let cells = |line: &str| line.split('|').map(|c| c.trim().to_string()).collect::<Vec<_>>();
        let line = two.lines().map(cells).find(|c| c[3] == "latency p99").unwrap();
        assert_eq!(line[4..7], ["40.0", "80.0", "2.00"]);
        assert!(two.lines().map(cells).any(|c| c[3] == "tokens/s" && c[6] == "0.50"), "{two}");
        let mut below = Vec::new();
        write_footer(&mut below, &[vec![row(&work, "http://a/v1", 10)]]).unwrap();
        let below = String::from_utf8(below).unwrap();
        let line = below.lines().map(cells).find(|c| c.len() > 3 && c[3] == "TPOT").unwrap();
        assert_eq!(line[4..7], ["10.0", "10.0", "10.0"], "{below}");
        assert!(below.lines().filter(|l| l.starts_with('|')).all(|l| l.len() <= 80), "{below}");
        let csv = printed(Output::Csv, &[row(&work, "http://a/v1", 10)]);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("octet_version,url,model") && lines[1].ends_with("\"3 x 429: full\""),
            "{csv}"
        );
    }

    #[test]
    fn nothing_measured_is_no_number() {
        let work = work();
        let empty = Row { level: Level::default(), ..row(&work, "http://a/v1", 1) };
        assert!(printed(Output::Md, &[empty]).contains(" - "));
        let empty = || Row { level: Level::default(), ..row(&work, "http://a/v1", 1) };
        let json: Value = serde_json::from_str(&printed(Output::Json, &[empty(), empty()])).unwrap();
        assert_eq!((&json[0]["ttft_ms_mean"], &json[1]["ratio_to_first"]), (&Value::Null, &json!({})));
    }
}
