//! Writes GGUF files for tests, valid and broken.

#![allow(dead_code)] // each test program uses its own part

use std::path::Path;

/// A value type's code and its bytes.
pub struct Encoded(u32, Vec<u8>);

pub fn u32(v: u32) -> Encoded {
    Encoded(4, v.to_le_bytes().to_vec())
}

pub fn f32(v: f32) -> Encoded {
    Encoded(6, v.to_le_bytes().to_vec())
}

pub fn bool(v: bool) -> Encoded {
    Encoded(7, vec![u8::from(v)])
}

pub fn string(v: &str) -> Encoded {
    Encoded(8, prefixed(v.as_bytes()))
}

pub fn strings(values: &[&str]) -> Encoded {
    array(
        8,
        values.len() as u64,
        values.iter().flat_map(|v| prefixed(v.as_bytes())).collect(),
    )
}

pub fn i32s(values: &[i32]) -> Encoded {
    array(
        5,
        values.len() as u64,
        values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    )
}

pub fn f32s(values: &[f32]) -> Encoded {
    array(
        6,
        values.len() as u64,
        values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    )
}

/// An array whose declared count need not be that of its bytes.
pub fn array(element_type: u32, count: u64, bytes: Vec<u8>) -> Encoded {
    let mut encoded = element_type.to_le_bytes().to_vec();
    encoded.extend(count.to_le_bytes());
    encoded.extend(bytes);
    Encoded(9, encoded)
}

/// Any bytes as a value of any type code.
pub fn raw(type_code: u32, bytes: Vec<u8>) -> Encoded {
    Encoded(type_code, bytes)
}

fn prefixed(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = (bytes.len() as u64).to_le_bytes().to_vec();
    encoded.extend(bytes);
    encoded
}

/// A tensor table entry; `offset` of `None` places the data after the previous tensor's.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub type_code: u32,
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl Tensor {
    /// An F32 tensor; dims innermost first.
    pub fn f32(name: &str, dims: &[u64], value: impl FnMut(u64) -> f32) -> Self {
        let count: u64 = dims.iter().product();
        Self {
            name: name.to_string(),
            dims: dims.to_vec(),
            type_code: 0,
            offset: None,
            data: (0..count).map(value).flat_map(f32::to_le_bytes).collect(),
        }
    }
}

/// A GGUF file in the making.
pub struct File {
    pub magic: [u8; 4],
    pub version: u32,
    pub metadata: Vec<(String, Encoded)>,
    pub tensors: Vec<Tensor>,
    /// Declared counts, if other than the real ones.
    pub tensor_count: Option<u64>,
    pub metadata_count: Option<u64>,
}

impl Default for File {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            metadata: Vec::new(),
            tensors: Vec::new(),
            tensor_count: None,
            metadata_count: None,
        }
    }
}

impl File {
    pub fn set(&mut self, key: &str, value: Encoded) -> &mut Self {
        self.remove(key);
        self.metadata.push((key.to_string(), value));
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    pub fn tensor_mut(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let alignment = 32;
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(
            self.tensor_count
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        out.extend(
            self.metadata_count
                .unwrap_or(self.metadata.len() as u64)
                .to_le_bytes(),
        );
        for (key, Encoded(type_code, bytes)) in &self.metadata {
            out.extend(prefixed(key.as_bytes()));
            out.extend(type_code.to_le_bytes());
            out.extend(bytes);
        }
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            out.extend(prefixed(tensor.name.as_bytes()));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(tensor.type_code.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(alignment), 0);
        }
        out.resize(out.len().next_multiple_of(alignment), 0);
        out.extend(data);
        out
    }

    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}

/// A llama of one block with a byte-level vocabulary of `a` to `z`, the space, two merges and ChatML's tokens.
pub fn tiny_llama() -> File {
    llama(32)
}

/// The same of another width, a multiple of 8.
pub fn llama(width: u64) -> File {
    deep_llama(width, 1)
}

/// The same with so many blocks, each with weights of its own.
pub fn deep_llama(width: u64, blocks: u64) -> File {
    let tokens: Vec<String> = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "Ġ",
        "Ċ",
        "th",
        "the",
    ]
    .into_iter()
    .map(str::to_string)
    .chain(('a'..='z').map(String::from))
    .collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let kinds: Vec<i32> = (0..tokens.len())
        .map(|i| if i < 3 { 3 } else { 1 })
        .collect();
    let (hidden, vocab) = (2 * width, tokens.len() as u64);
    let mut file = File::default();
    file.set("general.architecture", string("llama"))
        .set("llama.block_count", u32(blocks as u32))
        .set("llama.context_length", u32(128))
        .set("llama.embedding_length", u32(width as u32))
        .set("llama.feed_forward_length", u32(hidden as u32))
        .set("llama.attention.head_count", u32(4))
        .set("llama.attention.head_count_kv", u32(2))
        .set("llama.attention.layer_norm_rms_epsilon", f32(1e-5))
        .set("llama.rope.dimension_count", u32(width as u32 / 4))
        .set("llama.rope.freq_base", f32(10_000.0))
        .set("tokenizer.ggml.model", string("gpt2"))
        .set("tokenizer.ggml.pre", string("smollm"))
        .set("tokenizer.ggml.tokens", strings(&tokens))
        .set("tokenizer.ggml.token_type", i32s(&kinds))
        .set("tokenizer.ggml.merges", strings(&["t h", "th e"]))
        .set("tokenizer.ggml.bos_token_id", u32(1))
        .set("tokenizer.ggml.eos_token_id", u32(2))
        .set("tokenizer.ggml.add_bos_token", bool(false))
        .set(
            "tokenizer.chat_template",
            string("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"),
        );
    let kv_width = width / 2;
    let mut shapes = vec![
        (0, "token_embd".to_string(), vec![width, vocab]),
        (0, "output_norm".to_string(), vec![width]),
    ];
    for block in 0..blocks {
        shapes.extend(
            [
                ("attn_norm", vec![width]),
                ("attn_q", vec![width, width]),
                ("attn_k", vec![width, kv_width]),
                ("attn_v", vec![width, kv_width]),
                ("attn_output", vec![width, width]),
                ("ffn_norm", vec![width]),
                ("ffn_gate", vec![width, hidden]),
                ("ffn_up", vec![width, hidden]),
                ("ffn_down", vec![hidden, width]),
            ]
            .map(|(name, dims)| (block, format!("blk.{block}.{name}"), dims)),
        );
    }
    for (block, name, dims) in shapes {
        let name = format!("{name}.weight");
        let seed = name.len() as u64 + 1000 * block;
        // The control tokens' rows are zero: greedy answers never end by themselves.
        let silent = if name == "token_embd.weight" {
            3 * width
        } else {
            0
        };
        file.tensors.push(Tensor::f32(&name, &dims, |i| {
            // A fixed scatter of small values around zero.
            let mixed = (i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            if i < silent {
                0.0
            } else {
                mixed as f32 / (1 << 24) as f32 - 0.5
            }
        }));
    }
    file
}
