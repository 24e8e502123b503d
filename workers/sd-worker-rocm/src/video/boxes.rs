//! The boxes of MP4 (ISO/IEC 14496-12) around one track of AV1, by the binding of AV1 to them.

/// A track of frames that are all shown for the same time.
pub(super) struct Track {
    pub width: u16,
    pub height: u16,
    /// Frames a second, which are also the file's units of time.
    pub fps: u32,
    /// What `av1C` holds: the codec's configuration.
    pub configuration: Vec<u8>,
    /// The frames, and whether each stands alone.
    pub samples: Vec<(Vec<u8>, bool)>,
    /// Shown as the file's comment.
    pub comment: String,
}

/// 1 in 16.16 bits.
const ONE: u32 = 1 << 16;

/// A box: its size, its name and what it holds.
fn atom(name: &[u8; 4], content: &[&[u8]]) -> Vec<u8> {
    let size = 8 + content.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = (size as u32).to_be_bytes().to_vec();
    bytes.extend(name);
    content.iter().for_each(|part| bytes.extend(*part));
    bytes
}

/// Numbers of 32 bits one after the other.
fn numbers(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

/// No rotation.
fn matrix() -> Vec<u8> {
    numbers(&[ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30])
}

/// The file: what it is before its data, so that it can be shown while it is read.
///
/// # Errors
/// If it were larger than 4 GiB.
pub(super) fn file(track: &Track) -> Result<Vec<u8>, String> {
    let head = atom(b"ftyp", &[b"isom", &numbers(&[0]), b"isomav01iso2mp41"]);
    let data: usize = track.samples.iter().map(|sample| sample.0.len()).sum();
    // The size of the description does not depend on where the data is.
    let length = head.len() + description(track, 0).len() + 8;
    if u32::try_from(length + data).is_err() {
        return Err("more than 4 GiB".to_string());
    }
    let mut bytes = head;
    bytes.extend(description(track, length as u32));
    bytes.extend((data as u32 + 8).to_be_bytes());
    bytes.extend(b"mdat");
    for (sample, _) in &track.samples {
        bytes.extend(sample);
    }
    Ok(bytes)
}

/// `moov`, with the data from byte `data` on.
fn description(track: &Track, data: u32) -> Vec<u8> {
    let frames = track.samples.len() as u32;
    let movie = atom(
        b"mvhd",
        &[
            &numbers(&[0, 0, 0, track.fps, frames, ONE, 0x0100_0000, 0, 0]),
            &matrix(),
            &numbers(&[0, 0, 0, 0, 0, 0, 2]),
        ],
    );
    let (width, height) = (u32::from(track.width) << 16, u32::from(track.height) << 16);
    // Enabled and in the movie.
    let head = atom(
        b"tkhd",
        &[
            &numbers(&[3, 0, 0, 1, 0, frames, 0, 0, 0, 0]),
            &matrix(),
            &numbers(&[width, height]),
        ],
    );
    let media = atom(
        b"mdia",
        &[
            // The language is not determined.
            &atom(
                b"mdhd",
                &[&numbers(&[0, 0, 0, track.fps, frames, 0x55C4_0000])],
            ),
            &handler(b"vide", b"video"),
            &atom(
                b"minf",
                &[
                    &atom(b"vmhd", &[&numbers(&[1, 0, 0])]),
                    // The data is in this file.
                    &atom(
                        b"dinf",
                        &[&atom(
                            b"dref",
                            &[&numbers(&[0, 1]), &atom(b"url ", &[&numbers(&[1])])],
                        )],
                    ),
                    &table(track, data),
                ],
            ),
        ],
    );
    atom(
        b"moov",
        &[&movie, &atom(b"trak", &[&head, &media]), &comment(track)],
    )
}

fn handler(kind: &[u8; 4], name: &[u8]) -> Vec<u8> {
    atom(
        b"hdlr",
        &[&numbers(&[0, 0]), kind, &numbers(&[0, 0, 0]), name, &[0]],
    )
}

/// `stbl`: what the samples are, how long each is shown, how large and where they are.
fn table(track: &Track, data: u32) -> Vec<u8> {
    let frames = track.samples.len() as u32;
    let sizes: Vec<u32> = (track.samples.iter())
        .map(|sample| sample.0.len() as u32)
        .collect();
    let alone: Vec<u32> = (1..)
        .zip(&track.samples)
        .filter_map(|(number, sample)| sample.1.then_some(number))
        .collect();
    // BT.709 throughout, limited range.
    let colours = atom(b"colr", &[b"nclx", &[0, 1, 0, 1, 0, 1, 0]]);
    let mut entry = vec![0; 6];
    // The first data reference.
    entry.extend([0, 1]);
    entry.extend([0; 16]);
    entry.extend(track.width.to_be_bytes());
    entry.extend(track.height.to_be_bytes());
    // 72 pixels an inch each way, one frame a sample, no name, 24 bits, no table of colours.
    entry.extend(numbers(&[72 << 16, 72 << 16, 0]));
    entry.extend([0, 1]);
    entry.extend([0; 32]);
    entry.extend([0, 24, 0xFF, 0xFF]);
    let entry = atom(
        b"av01",
        &[&entry, &atom(b"av1C", &[&track.configuration]), &colours],
    );
    atom(
        b"stbl",
        &[
            &atom(b"stsd", &[&numbers(&[0, 1]), &entry]),
            &atom(b"stts", &[&numbers(&[0, 1, frames, 1])]),
            &atom(
                b"stss",
                &[&numbers(&[0, alone.len() as u32]), &numbers(&alone)],
            ),
            // All samples are one chunk.
            &atom(b"stsc", &[&numbers(&[0, 1, 1, frames, 1])]),
            &atom(b"stsz", &[&numbers(&[0, 0, frames]), &numbers(&sizes)]),
            &atom(b"stco", &[&numbers(&[0, 1, data])]),
        ],
    )
}

/// `udta` with a comment as iTunes writes it, which players and ffmpeg show.
fn comment(track: &Track) -> Vec<u8> {
    // UTF-8, of no country.
    let text = atom(b"data", &[&numbers(&[1, 0]), track.comment.as_bytes()]);
    let list = atom(b"ilst", &[&atom(b"\xA9cmt", &[&text])]);
    let kind = atom(
        b"hdlr",
        &[&numbers(&[0, 0]), b"mdirappl", &numbers(&[0, 0]), &[0]],
    );
    atom(b"udta", &[&atom(b"meta", &[&numbers(&[0]), &kind, &list])])
}
