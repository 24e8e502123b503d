//! Packed matrices against numbers that were packed here by hand.

use super::packing::{Codes, Packing, ScaleShape, Zeros};
use super::*;
use half::bf16;

const OUTPUTS: usize = 72;
const INPUTS: usize = 128;

/// A code of so many bits.
fn code(output: usize, input: usize, bits: usize) -> u32 {
    (output as u32 * 31 + input as u32 * 7 + (output * input) as u32 % 5) % (1 << bits)
}

/// A scale that is a binary16.
fn scale(group: usize, output: usize) -> f32 {
    (1 + (group * 5 + output) % 9) as f32 / 1024.0
}

/// What stands for 0.
fn zero(group: usize, output: usize, bits: usize) -> u32 {
    (group as u32 * 3 + output as u32) % (1 << bits)
}

/// Words of codes that come in a word's order.
fn words(codes: impl Iterator<Item = u32>, bits: usize) -> Vec<u8> {
    let codes: Vec<u32> = codes.collect();
    let word = |codes: &[u32]| {
        let shifted = codes.iter().enumerate().map(|(i, code)| code << (i * bits));
        shifted.fold(0, |word, code| word | code)
    };
    let words = codes.chunks(32 / bits).map(word);
    words.flat_map(u32::to_le_bytes).collect()
}

/// A matrix in a maker's layout, and what it says.
struct Packed {
    packing: Packing,
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Option<Vec<u8>>,
    g_idx: Option<Vec<i32>>,
}

impl Packed {
    fn new(codes: Codes, zeros: Zeros, bits: usize, group: usize) -> Self {
        let per_word = 32 / bits;
        let groups = INPUTS.div_ceil(group);
        let of_rows = |codes: Codes, rows: usize, columns: usize| -> Vec<u8> {
            // `rows` outputs and `columns` inputs, or groups.
            let value = |row, column| match columns == INPUTS {
                true => code(row, column, bits),
                false => zero(column, row, bits),
            };
            match codes {
                Codes::Columns => (0..columns / per_word)
                    .flat_map(|word| (0..rows).map(move |row| (word, row)))
                    .flat_map(|(word, row)| {
                        words((0..per_word).map(|i| value(row, word * per_word + i)), bits)
                    })
                    .collect(),
                Codes::Awq => (0..columns)
                    .flat_map(|column| (0..rows / 8).map(move |word| (column, word)))
                    .flat_map(|(column, word)| {
                        let order = [0, 2, 4, 6, 1, 3, 5, 7];
                        words(order.into_iter().map(|i| value(word * 8 + i, column)), bits)
                    })
                    .collect(),
                Codes::Rows => (0..rows)
                    .flat_map(|row| words((0..columns).map(|column| value(row, column)), bits))
                    .collect(),
                Codes::Signed => (0..rows)
                    .flat_map(|row| (0..columns).map(move |column| value(row, column) as u8 ^ 0x80))
                    .collect(),
            }
        };
        let by_groups = matches!(codes, Codes::Columns | Codes::Awq);
        let scales = match by_groups {
            true => (0..groups)
                .flat_map(|group| (0..OUTPUTS).map(move |output| scale(group, output)))
                .collect::<Vec<f32>>(),
            false => (0..OUTPUTS)
                .flat_map(|output| (0..groups).map(move |group| scale(group, output)))
                .collect(),
        };
        let stored = match zeros {
            Zeros::Middle | Zeros::One => None,
            Zeros::Gptq { less_one } => Some(
                (0..groups)
                    .flat_map(|group| {
                        words((0..OUTPUTS).map(|output| zero(group, output, bits)), bits)
                    })
                    .collect::<Vec<u8>>()
                    .chunks_exact(4)
                    .flat_map(|word| {
                        let ones = match (less_one, bits) {
                            (false, _) => 0,
                            (true, 4) => 0x1111_1111,
                            (true, _) => 0x0101_0101,
                        };
                        let word = u32::from_le_bytes(word.try_into().unwrap());
                        word.wrapping_sub(ones).to_le_bytes()
                    })
                    .collect(),
            ),
            Zeros::Awq => Some(of_rows(Codes::Awq, OUTPUTS, groups)),
            Zeros::Columns => {
                let packed = |word: usize, group: usize| {
                    let outputs = word * per_word..OUTPUTS.min((word + 1) * per_word);
                    words(outputs.map(|output| zero(group, output, bits)), bits)
                };
                let all = 0..OUTPUTS.div_ceil(per_word);
                Some(
                    all.flat_map(|word| (0..groups).map(move |group| (word, group)))
                        .flat_map(|(word, group)| packed(word, group))
                        .collect(),
                )
            }
            Zeros::Signed => Some(of_rows(Codes::Signed, OUTPUTS, groups)),
        };
        Self {
            packing: Packing {
                outputs: OUTPUTS,
                inputs: INPUTS,
                bits,
                group,
                codes,
                zeros,
                scale_type: Dtype::F16,
                scales: match by_groups {
                    true => ScaleShape::Groups,
                    false => ScaleShape::Outputs,
                },
            },
            codes: of_rows(codes, OUTPUTS, INPUTS),
            scales: scales
                .iter()
                .flat_map(|scale| f16::from_f32(*scale).to_le_bytes())
                .collect(),
            zeros: stored,
            g_idx: None,
        }
    }

    /// Writes the tensors into a file.
    fn files(&self) -> (tempfile::NamedTempFile, Files, Sources, Option<Source>) {
        let g_idx: Option<Vec<u8>> = (self.g_idx.as_ref()).map(|groups| {
            groups
                .iter()
                .flat_map(|group| group.to_le_bytes())
                .collect()
        });
        let mut all = Vec::new();
        let mut place = |bytes: &[u8]| {
            all.extend_from_slice(bytes);
            Source {
                shard: 0,
                start: all.len() - bytes.len(),
                bytes: bytes.len(),
            }
        };
        let sources = Sources {
            codes: place(&self.codes),
            scales: place(&self.scales),
            zeros: self.zeros.as_deref().map(&mut place),
        };
        let g_idx = g_idx.as_deref().map(&mut place);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &all).unwrap();
        let mut files = Files::default();
        let map = worker::gguf::map_file(file.path()).unwrap();
        files.maps.push(std::sync::Arc::new(map));
        (file, files, sources, g_idx)
    }

    fn read(&self) -> Result<(tempfile::NamedTempFile, Files, Integers), String> {
        let (file, files, sources, g_idx) = self.files();
        let made = Integers::new(self.packing.clone(), sources, g_idx, &files)?;
        Ok((file, files, made))
    }

    fn group(&self, input: usize) -> usize {
        match &self.g_idx {
            Some(groups) => groups[input] as usize,
            None => input / self.packing.group,
        }
    }

    fn value(&self, output: usize, input: usize) -> f32 {
        let (bits, group) = (self.packing.bits, self.group(input));
        let zero = match self.packing.zeros {
            Zeros::Middle => 1 << (bits - 1),
            _ => zero(group, output, bits),
        };
        (code(output, input, bits) as f32 - zero as f32) * scale(group, output)
    }

    /// Checks elements and blocks, and gives what became of the matrix.
    fn check(&self) -> (Format, Option<Vec<u32>>) {
        let (_file, files, made) = self.read().unwrap();
        // From the middle of a tile into another.
        for rows in [0..OUTPUTS, 5..OUTPUTS - 1, 70..71] {
            let mut elements = vec![0.0; rows.len() * INPUTS];
            made.elements(&files, rows.clone(), &mut elements).unwrap();
            for (row, got) in rows.clone().zip(elements.chunks_exact(INPUTS)) {
                for (input, got) in got.iter().enumerate() {
                    assert_eq!(*got, self.value(row, input), "{row} {input}");
                }
            }
            let format = made.format();
            if format.block_size() == 1 {
                continue;
            }
            let size = format.type_size();
            let mut blocks = vec![0; rows.len() * INPUTS / BLOCK * size];
            made.blocks(&files, rows.clone(), &mut blocks).unwrap();
            let order = made.order();
            for (row, blocks) in rows.zip(blocks.chunks_exact(INPUTS / BLOCK * size)) {
                for column in 0..INPUTS {
                    let block = &blocks[column / BLOCK * size..(column / BLOCK + 1) * size];
                    let input = order.as_ref().map_or(column, |o| o[column] as usize);
                    let (got, want) = (
                        number(format, block, column % BLOCK),
                        self.value(row, input),
                    );
                    // The offset is a binary16.
                    let most = if format == Format::Q4_1 {
                        1.0 / 2048.0 / 8.0
                    } else {
                        0.0
                    };
                    assert!(
                        (got - want).abs() <= most,
                        "{row} {column}: {got} for {want}"
                    );
                }
            }
        }
        (made.format(), made.order())
    }
}

/// A number of a block, as GGUF has it.
fn number(format: Format, block: &[u8], i: usize) -> f32 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let nibble = |first: usize| f32::from(block[first + i % 16] >> (i / 16 * 4) & 15);
    match format {
        Format::Q4_0 => (nibble(2) - 8.0) * half(0),
        Format::Q4_1 => nibble(4) * half(0) + half(2),
        _ => f32::from(block[2 + i] as i8) * half(0),
    }
}

#[test]
fn makers_layouts_become_blocks() {
    let gptq = |less_one| (Codes::Columns, Zeros::Gptq { less_one });
    for ((codes, zeros), bits, group, expected) in [
        (gptq(true), 4, 32, Format::Q4_1),
        (gptq(false), 4, 64, Format::Q4_1),
        (gptq(true), 8, 64, Format::F16),
        ((Codes::Columns, Zeros::Middle), 4, INPUTS, Format::Q4_0),
        ((Codes::Columns, Zeros::Middle), 8, 32, Format::Q8_0),
        // Groups that no blocks have.
        ((Codes::Columns, Zeros::Middle), 4, 16, Format::F16),
        ((Codes::Columns, Zeros::Middle), 4, 48, Format::F16),
        ((Codes::Awq, Zeros::Awq), 4, 64, Format::Q4_1),
        ((Codes::Rows, Zeros::Middle), 4, 32, Format::Q4_0),
        ((Codes::Rows, Zeros::Middle), 8, INPUTS, Format::Q8_0),
        ((Codes::Rows, Zeros::Columns), 4, 64, Format::Q4_1),
        ((Codes::Rows, Zeros::Columns), 8, 64, Format::F16),
        ((Codes::Signed, Zeros::Middle), 8, INPUTS, Format::Q8_0),
        ((Codes::Signed, Zeros::Signed), 8, INPUTS, Format::F16),
    ] {
        let found = Packed::new(codes, zeros, bits, group).check();
        assert_eq!(
            found,
            (expected, None),
            "{codes:?} {zeros:?} {bits} {group}"
        );
    }
}

#[test]
fn bytes_by_hand() {
    // Two words of GPTQ's, of eight inputs each of one output.
    let words = [0x7654_3210u32, 0xfedc_ba98];
    let mut codes = [[0; TILE]; BLOCK];
    let packing = Packing {
        outputs: 1,
        inputs: 16,
        ..Packed::new(Codes::Columns, Zeros::Middle, 4, INPUTS).packing
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let inputs: Vec<usize> = (0..16).collect();
    packing.codes(&bytes, &inputs, 0..1, &mut codes);
    let first: Vec<u8> = codes[..16].iter().map(|codes| codes[0]).collect();
    assert_eq!(first, (0..16).collect::<Vec<u8>>());
    // One of AWQ's, of eight outputs.
    let packing = Packing {
        outputs: 8,
        inputs: 1,
        codes: Codes::Awq,
        ..packing
    };
    packing.codes(&0x7531_6420u32.to_le_bytes(), &[0], 0..8, &mut codes);
    assert_eq!(codes[0][..8], [0, 1, 2, 3, 4, 5, 6, 7]);
    // Zero points: 8 is stored as 7; 0 takes one from the next.
    let zeros = Packing {
        zeros: Zeros::Gptq { less_one: true },
        ..packing
    };
    let stored = 0x0000_02f7u32.to_le_bytes();
    let found = [0, 1, 2, 3].map(|output| zeros.zero(Some(&stored), 0, output));
    assert_eq!(found, [8, 0, 4, 1]);
}

#[test]
fn columns_are_sorted_by_group() {
    for (codes, zeros) in [
        (Codes::Columns, Zeros::Gptq { less_one: true }),
        (Codes::Rows, Zeros::Columns),
    ] {
        let mut packed = Packed::new(codes, zeros, 4, 32);
        packed.g_idx = Some((0..INPUTS).map(|input| (input * 7 % 4) as i32).collect());
        let (format, order) = packed.check();
        assert_eq!(format, Format::Q4_1);
        let order = order.unwrap();
        // Those of a group in their order.
        assert_eq!(order[..3], [0, 4, 8]);
        assert_eq!(order[32], 3);
        let mut all = order.clone();
        all.sort_unstable();
        assert_eq!(all, (0..INPUTS as u32).collect::<Vec<_>>());
        // As it would be anyway, or said to be nothing.
        for usual in [
            (0..INPUTS as i32).map(|i| i / 32).collect(),
            vec![-1; INPUTS],
        ] {
            packed.g_idx = Some(usual.clone());
            if usual[0] == -1 {
                let (_file, _, made) = packed.read().unwrap();
                assert_eq!((made.format(), made.order()), (Format::Q4_1, None));
                continue;
            }
            assert_eq!(packed.check(), (Format::Q4_1, None));
        }
        // Groups that do not fill blocks.
        packed.g_idx = Some(
            (0..INPUTS)
                .map(|input| i32::from(input % 100 == 0))
                .collect(),
        );
        assert_eq!(packed.check(), (Format::F16, None));
    }
}

#[test]
fn scales_that_are_no_halves_are_kept() {
    let of = |scales: Vec<u8>, dtype: Dtype, zeros: Zeros| {
        let mut packed = Packed::new(Codes::Rows, zeros, 4, INPUTS);
        packed.scales = scales;
        packed.packing.scale_type = dtype;
        packed.read().map(|(_, _, made)| made.format())
    };
    let all = |value: f32| value.to_le_bytes().repeat(OUTPUTS);
    // Rounding as of a normal number.
    assert_eq!(of(all(0.1), Dtype::F32, Zeros::Middle), Ok(Format::Q4_0));
    assert_eq!(of(all(-0.1), Dtype::F32, Zeros::Columns), Ok(Format::Q4_1));
    for lost in [1e-6, 7e4] {
        assert_eq!(of(all(lost), Dtype::F32, Zeros::Middle), Ok(Format::F32));
    }
    // The offset is beyond.
    assert_eq!(of(all(6e4), Dtype::F32, Zeros::Columns), Ok(Format::F32));
    let halves = |value: f32| bf16::from_f32(value).to_le_bytes().repeat(OUTPUTS);
    assert_eq!(
        of(halves(0.1), Dtype::BF16, Zeros::Middle),
        Ok(Format::Q4_0)
    );
    assert_eq!(
        of(halves(1e-8), Dtype::BF16, Zeros::Middle),
        Ok(Format::BF16)
    );
    for wrong in [f32::NAN, f32::INFINITY] {
        let reason = of(all(wrong), Dtype::F32, Zeros::Middle).unwrap_err();
        assert!(reason.contains(&wrong.to_string()), "{reason}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut Packed)| {
        let zeros = Zeros::Gptq { less_one: true };
        let mut packed = Packed::new(Codes::Columns, zeros, 4, 32);
        change(&mut packed);
        packed.read().err().expect("it must be refused")
    };
    let check = |reason: String, why: &str| assert!(reason.contains(why), "{reason}");
    check(refusal(&|p| p.codes.truncate(100)), "codes of 100 bytes");
    check(refusal(&|p| p.scales.push(0)), "scales of");
    check(refusal(&|p| p.zeros = None), "zero points of 0 bytes");
    check(refusal(&|p| p.packing.group = 64), "scales of");
    check(
        refusal(&|p| p.g_idx = Some(vec![4; INPUTS])),
        "group 4 of 4",
    );
    check(
        refusal(&|p| p.g_idx = Some(vec![-2; INPUTS])),
        "group -2 of 4",
    );
    check(
        refusal(&|p| p.g_idx = Some(vec![0; 3])),
        "g_idx of 3 numbers",
    );
}
