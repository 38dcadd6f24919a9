//! Loads named tensors into a backend, with every shape checked. Called by `models::load`.

use std::collections::HashSet;

use octet_compute::backend::{Attention, Backend, Gdn, Mlp, Moe, SharedExpert};
use octet_weights::{Matrix, Model};

use super::architectures::QkNorm;
use super::config::Config;
use super::decoder::{Decoder, DraftHead, FeedForward, Layer, Mixer, Mtp};
use super::mtp::DraftVocab;
use crate::Error;

/// Token types that end or mark parts of an answer: control tokens and added ones.
const MARKS: [i64; 2] = [3, 4];

/// Called while a model loads, with the bytes loaded so far and in total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A model being loaded into backend `B`.
pub struct Loader<'a, B: Backend> {
    /// The open model.
    pub model: &'a Model,
    /// The backend for its weights.
    pub be: &'a mut B,
    /// Its dimensions.
    pub config: &'a Config,
    progress: Progress<'a>,
    loaded: u64,
    used: HashSet<String>,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Starts loading `model` into `be`.
    pub fn new(model: &'a Model, be: &'a mut B, config: &'a Config, progress: Progress<'a>) -> Self {
        Self { model, be, config, progress, loaded: 0, used: HashSet::new() }
    }

    /// Loads the whole model; including the multi-token-prediction block if the file has one and `mtp` is set.
    pub fn decoder(mut self, mtp: Option<DraftVocab>) -> Result<Decoder<B>, Error> {
        let c = self.config;
        let (embedding, head) = self.embedding_and_head()?;
        let layers = (0..c.layers).map(|i| self.layer(i)).collect::<Result<_, _>>()?;
        let mtp = mtp.filter(|_| c.mtp_layers == 1).map(|vocab| self.mtp(c.layers, vocab)).transpose()?;
        let norm = self.vector("output_norm.weight", &[c.hidden])?;
        self.refuse_unused()?;
        Ok(Decoder {
            hidden: c.hidden,
            vocab: c.vocab,
            eps: c.eps,
            embedding,
            layers,
            norm,
            head,
            mtp,
            picks: false,
        })
    }

    /// Fails if the file has a tensor of the text model that was not loaded. Ignores the block of multi-token prediction, encoders for
    /// images and sound, and tensors used by the configuration.
    fn refuse_unused(&self) -> Result<(), Error> {
        let c = self.config;
        let aside = |name: &str| {
            let block = name.strip_prefix("blk.").and_then(|s| s.split_once('.'));
            let block = block.and_then(|(i, _)| i.parse::<usize>().ok());
            block.is_some_and(|i| (c.layers..c.layers + c.mtp_layers).contains(&i))
                || ["v.", "mm.", "a.", "mtp."].iter().any(|tower| name.starts_with(tower))
                || name == "rope_freqs.weight"
        };
        let known = self.model.tensors().iter().map(|t| &t.name).filter(|&name| !self.used.contains(name));
        match known.chain(self.model.ignored()).find(|name| !aside(name)) {
            None => Ok(()),
            Some(name) => {
                let what = format!(
                    "has no place in architecture '{}' as this version computes it; without it the model would give \
                     other text",
                    c.architecture.name
                );
                Err(octet_weights::Error::tensor(&self.model.origin, name, what).into())
            }
        }
    }

    fn layer(&mut self, i: usize) -> Result<Layer<B>, Error> {
        let recurrent = self.config.recurrent.get(i).copied().unwrap_or(false);
        Ok(Layer {
            mixer: if recurrent { self.gdn(i)? } else { self.attention(i)? },
            feed_forward: self.feed_forward(i)?,
        })
    }

    /// The multi-token-prediction block, which is block `i` of the file.
    fn mtp(&mut self, i: usize, vocab: DraftVocab) -> Result<Mtp<B>, Error> {
        let h = self.config.hidden;
        let name = |n: &str| format!("blk.{i}.nextn.{n}.weight");
        let norm = name("shared_head_norm");
        let norm = if self.model.info(&norm).is_some() { norm } else { "output_norm.weight".to_string() };
        Ok(Mtp {
            embed_norm: self.vector(&name("enorm"), &[h])?,
            hidden_norm: self.vector(&name("hnorm"), &[h])?,
            fc_embed: self.columns(&name("eh_proj"), [h, 2 * h], 0..h)?,
            fc_hidden: self.columns(&name("eh_proj"), [h, 2 * h], h..2 * h)?,
            layer: self.layer(i)?,
            norm: self.vector(&norm, &[h])?,
            head: self.draft_head(vocab)?,
        })
    }

    /// The head for drafts, if the whole one is much larger: the first tokens, [`MARKS`], and rows for recent tokens of the text.
    fn draft_head(&mut self, among: DraftVocab) -> Result<Option<DraftHead<B>>, Error> {
        let (vocab, hidden) = (self.config.vocab, self.config.hidden);
        if !among.is_part_of(vocab) {
            return Ok(None);
        }
        let DraftVocab { first, recent } = among;
        let own = self.model.info("output.weight").is_some();
        let name = if own { "output.weight" } else { "token_embd.weight" };
        let all = self.model.tensor(name, &[vocab, hidden])?.matrix();
        let mut rows = all.slice_rows(0, first);
        let mut data = rows.data.to_vec();
        let mut ids: Vec<u32> = (0..first as u32).collect();
        let kinds = self.model.metadata.opt_ints("tokenizer.ggml.token_type")?.unwrap_or_default();
        for (id, kind) in kinds.iter().enumerate().take(vocab).skip(first) {
            if MARKS.contains(kind) {
                data.extend_from_slice(&all.slice_rows(id, id + 1).data);
                ids.push(id as u32);
            }
        }
        // Rows without a token so far may have any content.
        let any = all.slice_rows(0, 1).data;
        (0..recent).for_each(|_| data.extend_from_slice(&any));
        (rows.rows, rows.data) = (ids.len() + recent, data.into());
        let head = self.be.weight(&rows, None);
        Ok(Some(DraftHead { weight: self.named(name, head)?, ids, recent }))
    }

    fn done(&mut self, name: &str) {
        // Two parts may share a norm.
        if self.used.insert(name.to_string()) {
            self.loaded += self.model.info(name).map_or(0, |t| t.size_bytes());
        }
        self.model.release(name);
        (self.progress)(self.loaded, self.model.size_bytes());
    }

    fn named<T>(&self, name: &str, r: Result<T, octet_compute::Error>) -> Result<T, Error> {
        r.map_err(|e| octet_weights::Error::tensor(&self.model.origin, name, e.to_string()).into())
    }

    /// A small tensor as f32 values.
    fn vector(&mut self, name: &str, shape: &[usize]) -> Result<B::Buf, Error> {
        let values = self.model.tensor(name, shape)?.to_f32();
        let v = self.be.vector(&values);
        let v = self.named(name, v)?;
        self.done(name);
        Ok(v)
    }

    /// Convolution taps `[channels, taps]`, transposed to `[taps, channels]`.
    fn conv(&mut self, name: &str, channels: usize, taps: usize) -> Result<B::Buf, Error> {
        let file = self.model.tensor(name, &[channels, taps])?.to_f32();
        let turned: Vec<f32> =
            (0..taps * channels).map(|i| file[i % channels * taps + i / channels]).collect();
        let v = self.be.vector(&turned);
        let v = self.named(name, v)?;
        self.done(name);
        Ok(v)
    }

    /// `{stem}.weight` as a projection `[rows, cols]`, with `{stem}.bias` where the file has one.
    fn linear(&mut self, stem: &str, rows: usize, cols: usize) -> Result<B::Weight, Error> {
        let (name, bias_name) = (format!("{stem}.weight"), format!("{stem}.bias"));
        let m = self.model.tensor(&name, &[rows, cols])?.matrix();
        let bias = match self.model.optional(&bias_name)? {
            None => None,
            Some(t) => {
                t.expect_shape(&self.model.origin, &[rows])?;
                self.done(&bias_name);
                Some(t.to_f32())
            }
        };
        self.pack(&name, &m, bias.as_deref())
    }

    fn pack(&mut self, name: &str, m: &Matrix, bias: Option<&[f32]>) -> Result<B::Weight, Error> {
        let w = self.be.weight(m, bias);
        let w = self.named(name, w)?;
        self.done(name);
        Ok(w)
    }

    /// Columns `from..to` of a projection `[rows, cols]`, copied row by row.
    fn columns(
        &mut self,
        name: &str,
        [rows, cols]: [usize; 2],
        range: std::ops::Range<usize>,
    ) -> Result<B::Weight, Error> {
        let m = self.model.tensor(name, &[rows, cols])?.matrix();
        let m = m.slice_cols(range).ok_or_else(|| {
            octet_weights::Error::tensor(&self.model.origin, name, "cannot be cut in halves of whole blocks")
        })?;
        self.pack(name, &m, None)
    }

    /// The embedding table and the output head, which may be the same tensor.
    fn embedding_and_head(&mut self) -> Result<(B::Embedding, B::Weight), Error> {
        let (vocab, hidden) = (self.config.vocab, self.config.hidden);
        let name = "token_embd.weight";
        let table = self.model.tensor(name, &[vocab, hidden])?.matrix();
        let embedding = self.be.embedding(&table);
        let embedding = self.named(name, embedding)?;
        let head = match self.model.info("output.weight") {
            Some(_) => self.linear("output", vocab, hidden)?,
            None => {
                let head = self.be.weight(&table, None);
                self.named(name, head)?
            }
        };
        self.done(name);
        Ok((embedding, head))
    }

    /// Softmax attention of block `i`.
    fn attention(&mut self, i: usize) -> Result<Mixer<B>, Error> {
        let c = self.config;
        let gated = c.architecture.output_gate;
        let (heads, kv_heads, d, hidden) = (c.heads, c.kv_heads[i], c.head_dim, c.hidden);
        let q_rows = heads * d * if gated { 2 } else { 1 };
        Ok(Mixer::Attention {
            norm: self.vector(&format!("blk.{i}.attn_norm.weight"), &[hidden])?,
            q: self.linear(&format!("blk.{i}.attn_q"), q_rows, hidden)?,
            k: self.linear(&format!("blk.{i}.attn_k"), kv_heads * d, hidden)?,
            v: self.linear(&format!("blk.{i}.attn_v"), kv_heads * d, hidden)?,
            out: self.linear(&format!("blk.{i}.attn_output"), hidden, heads * d)?,
            spec: Attention {
                heads,
                kv_heads,
                head_dim: d,
                gated,
                qk_norm: {
                    let lengths = match c.architecture.qk_norm {
                        QkNorm::None => None,
                        QkNorm::Head => Some([d, d]),
                        QkNorm::Whole => Some([heads * d, kv_heads * d]),
                    };
                    let mut norm = |of: &str, n| self.vector(&format!("blk.{i}.attn_{of}_norm.weight"), &[n]);
                    lengths.map(|[q, k]| Ok::<_, Error>((norm("q", q)?, norm("k", k)?))).transpose()?
                },
                eps: c.eps,
                rope_dims: c.rope.dims,
                rope_pairing: c.rope_pairing,
                inv_freq: {
                    let f = self.be.vector(&c.rope.inv_freq);
                    self.named("rope_freqs.weight", f)?
                },
                rope_scale: c.rope.scale,
            },
        })
    }

    /// Gated DeltaNet of block `i`.
    fn gdn(&mut self, i: usize) -> Result<Mixer<B>, Error> {
        let c = self.config;
        let g = c.gdn.expect("a model with recurrent layers has their dimensions");
        let value_len = g.v_heads * g.v_dim;
        let channels = 2 * g.k_heads * g.k_dim + value_len;
        let name = |n: &str| format!("blk.{i}.{n}");
        Ok(Mixer::Gdn {
            norm: self.vector(&name("attn_norm.weight"), &[c.hidden])?,
            qkv: self.linear(&name("attn_qkv"), channels, c.hidden)?,
            z: self.linear(&name("attn_gate"), value_len, c.hidden)?,
            beta: self.linear(&name("ssm_beta"), g.v_heads, c.hidden)?,
            alpha: self.linear(&name("ssm_alpha"), g.v_heads, c.hidden)?,
            out: self.linear(&name("ssm_out"), c.hidden, value_len)?,
            spec: Gdn {
                k_heads: g.k_heads,
                v_heads: g.v_heads,
                k_dim: g.k_dim,
                v_dim: g.v_dim,
                conv_kernel: g.conv_kernel,
                order: g.order,
                conv: self.conv(&name("ssm_conv1d.weight"), channels, g.conv_kernel)?,
                dt_bias: self.vector(&name("ssm_dt.bias"), &[g.v_heads])?,
                a: self.vector(&name("ssm_a"), &[g.v_heads])?,
                norm: self.vector(&name("ssm_norm.weight"), &[g.v_dim])?,
                eps: c.eps,
            },
        })
    }

    /// The feed-forward part of block `i`.
    fn feed_forward(&mut self, i: usize) -> Result<FeedForward<B>, Error> {
        let c = self.config;
        let name = |n: &str| format!("blk.{i}.{n}");
        let norm =
            self.vector(&name(&format!("{}.weight", c.architecture.feed_forward_norm)), &[c.hidden])?;
        let Some(m) = c.moe else {
            return Ok(FeedForward::Dense(Mlp {
                norm,
                eps: c.eps,
                gate: self.linear(&name("ffn_gate"), c.intermediate, c.hidden)?,
                up: self.linear(&name("ffn_up"), c.intermediate, c.hidden)?,
                down: self.linear(&name("ffn_down"), c.hidden, c.intermediate)?,
            }));
        };
        let router = self.linear(&name("ffn_gate_inp"), m.experts, c.hidden)?;
        let (gate, up) = self.gate_and_up(i, m.experts, m.intermediate)?;
        let down = self.stack(i, "ffn_down", [m.experts, c.hidden, m.intermediate])?;
        let shared = match m.shared_intermediate {
            0 => None,
            n => Some(SharedExpert {
                router: self.vector(&name("ffn_gate_inp_shexp.weight"), &[c.hidden])?,
                gate: self.linear(&name("ffn_gate_shexp"), n, c.hidden)?,
                up: self.linear(&name("ffn_up_shexp"), n, c.hidden)?,
                down: self.linear(&name("ffn_down_shexp"), c.hidden, n)?,
            }),
        };
        Ok(FeedForward::Experts(Moe {
            norm,
            eps: c.eps,
            router,
            gate,
            up,
            down,
            shared,
            experts: m.experts,
            top_k: m.top_k,
            norm_top_k: m.norm_top_k,
        }))
    }

    /// Gate and up projections of all experts: two stacks, one fused stack, or a tensor for each expert.
    fn gate_and_up(
        &mut self,
        i: usize,
        experts: usize,
        inner: usize,
    ) -> Result<(B::Experts, B::Experts), Error> {
        let hidden = self.config.hidden;
        let fused = format!("blk.{i}.ffn_gate_up_exps.weight");
        if self.model.info(&fused).is_none() {
            let gate = self.stack(i, "ffn_gate", [experts, inner, hidden])?;
            return Ok((gate, self.stack(i, "ffn_up", [experts, inner, hidden])?));
        }
        let m = self.model.tensor(&fused, &[experts, 2 * inner, hidden])?.matrix();
        let half = |from: usize| -> Vec<Matrix> {
            (0..experts).map(|e| m.slice_rows((2 * e + from) * inner, (2 * e + from + 1) * inner)).collect()
        };
        let gate = self.be.experts(&half(0));
        let gate = self.named(&fused, gate)?;
        let up = self.be.experts(&half(1));
        let up = self.named(&fused, up)?;
        self.done(&fused);
        Ok((gate, up))
    }

    /// One projection of all experts `[experts, rows, cols]`: a stack, or a tensor for each expert.
    fn stack(
        &mut self,
        i: usize,
        stem: &str,
        [experts, rows, cols]: [usize; 3],
    ) -> Result<B::Experts, Error> {
        let stacked = format!("blk.{i}.{stem}_exps.weight");
        let single = |e: usize| format!("blk.{i}.{stem}.{e}.weight");
        let is_stacked = self.model.info(&stacked).is_some() || self.model.info(&single(0)).is_none();
        let m: Vec<Matrix> = if is_stacked {
            let m = self.model.tensor(&stacked, &[experts, rows, cols])?.matrix();
            (0..experts).map(|e| m.slice_rows(e * rows, (e + 1) * rows)).collect()
        } else {
            let one = |e| Ok(self.model.tensor(&single(e), &[rows, cols])?.matrix());
            (0..experts).map(one).collect::<Result<_, octet_weights::Error>>()?
        };
        let w = self.be.experts(&m);
        drop(m);
        let w = self.named(&stacked, w)?;
        if is_stacked {
            self.done(&stacked);
        } else {
            (0..experts).for_each(|e| self.done(&single(e)));
        }
        Ok(w)
    }
}
