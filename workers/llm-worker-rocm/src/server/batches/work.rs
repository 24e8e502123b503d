//! A batch from its file to its results.

use super::record::{InputError, Kind, Record, Status, MAX_ERRORS};
use super::store::Entry;
use super::{share, MAX_LINE_BYTES};
use crate::batch::ask::{Own, Trouble};
use crate::batch::feed::{self, Feed};
use crate::batch::figures::Figures;
use crate::batch::input::Lines;
use crate::batch::journal::{self, Journal, Known, Sink};
use crate::batch::line::{hash_of, Fault, Item};
use crate::batch::outcome::Outcome;
use crate::batch::run::{Course, End, Run};
use crate::server::app::App;
use crate::server::error::blocking;
use crate::server::files::Meta;
use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use worker::http::{ApiError, Caller};
use worker::serve::{Inside, Unready};
use worker::time::unix;

/// How often it is looked whether the model is there.
const READY_PAUSE: Duration = Duration::from_millis(200);
/// How often a request is tried again.
const RETRIES: u32 = 8;
/// Requests at once that are computed one after the other: those that somebody waits for come between.
const UNQUEUED: usize = 1;
/// Requests at once where no engine says how many.
const WITHOUT_ENGINE: usize = 4;
/// Outcomes between the requests and the files.
const OUTCOMES: usize = 64;

/// Brings a batch to its end, unless the server ends before.
pub(super) async fn attend(app: Arc<App>, entry: Arc<Entry>) {
    let id = entry.now().id;
    if let Err(error) = advance(&app, &entry).await {
        tracing::error!("batch {id}: {}", error.message);
        let told = InputError {
            code: error.code.to_string(),
            line: None,
            message: error.message,
            param: None,
        };
        let failed = entry.change(&app, |record| {
            record.errors.push(told);
            record.set(Status::Failed);
        });
        if let Err(error) = failed {
            tracing::error!("batch {id}: {}", error.message);
        }
    }
}

/// Does all that is left to do.
async fn advance(app: &Arc<App>, entry: &Arc<Entry>) -> Result<(), ApiError> {
    if entry.now().status == Status::Validating && !validate(app, entry).await? {
        return Ok(());
    }
    let left = |record: &Record| {
        Duration::from_secs(record.expires_at.saturating_sub(unix()).max(0) as u64)
    };
    let expiring = entry.clone();
    let expiry = tokio::spawn(async move {
        tokio::time::sleep(left(&expiring.now())).await;
        expiring.course.send_replace(Course::Drop);
    });
    let answered = answer(app, entry).await;
    expiry.abort();
    if !answered? {
        // The server ends, and the next one goes on.
        return Ok(());
    }
    finish(app, entry).await
}

/// Looks the file through; gives whether it can be answered.
async fn validate(app: &Arc<App>, entry: &Arc<Entry>) -> Result<bool, ApiError> {
    let record = entry.now();
    let path = app.files().path(&record.input_file_id)?;
    let (app, entry) = (app.clone(), entry.clone());
    blocking(move || {
        let unreadable =
            |e: std::io::Error| ApiError::internal(format!("the input cannot be read: {e}"));
        let file = File::open(path).map_err(unreadable)?;
        let mut lines = Lines::new(BufReader::with_capacity(1 << 20, file), MAX_LINE_BYTES);
        let (mut errors, mut seen, mut total) = (Vec::new(), HashSet::new(), 0);
        let most = record.kind.max_requests();
        while let Some(line) = lines.next_line().map_err(unreadable)? {
            total += 1;
            if total > most {
                let message = format!("there are more than {most} requests");
                errors.push(Fault::new(line.number, "too_many_requests", message));
                break;
            }
            let too_long = |length| {
                let message = format!("{length} bytes; {MAX_LINE_BYTES} are possible");
                Fault::new(line.number, "line_too_long", message)
            };
            let item = (line.bytes.map_err(too_long))
                .and_then(|bytes| Item::read(line.number, bytes, Some(&record.endpoint)));
            match item {
                Err(fault) => errors.push(fault),
                Ok(item) if !seen.insert(hash_of(&item.custom_id)) => {
                    let message = format!("custom_id {:?} comes twice", item.custom_id);
                    errors.push(Fault::new(line.number, "duplicate_custom_id", message));
                }
                Ok(_) => {}
            }
            if errors.len() >= MAX_ERRORS {
                break;
            }
        }
        if total == 0 {
            errors.push(Fault::new(
                1,
                "empty_file",
                "there is no request in the file",
            ));
        }
        let is_fine = errors.is_empty();
        entry.change(&app, |record| match is_fine {
            true => {
                record.total = total;
                if record.status == Status::Validating {
                    record.set(Status::InProgress);
                }
            }
            false => {
                record.errors = errors.into_iter().map(told).collect();
                record.set(Status::Failed);
            }
        })?;
        Ok(is_fine)
    })
    .await
}

fn told(fault: Fault) -> InputError {
    InputError {
        code: fault.code.to_string(),
        line: Some(fault.line),
        message: fault.message,
        param: fault.param.map(str::to_string),
    }
}

/// Answers what is left; gives whether nothing is.
async fn answer(app: &Arc<App>, entry: &Arc<Entry>) -> Result<bool, ApiError> {
    let mut course = entry.course.subscribe();
    let turn = tokio::select! {
        turn = app.batches.turn.acquire() => turn.ok(),
        // It has no turn any more, and needs none.
        _ = course.wait_for(|course| *course != Course::On) => None,
    };
    let is_on = || *entry.course.borrow() == Course::On;
    while is_on() {
        match app.frame.ready() {
            Ok(_) => break,
            Err(Unready::Loading { .. }) => tokio::time::sleep(READY_PAUSE).await,
            Err(_) => return Ok(false),
        }
    }
    let figures = Arc::new(Figures::default());
    let (opened, of_open) = ((app.clone(), entry.now()), figures.clone());
    let (known, sink) = blocking(move || open(&opened.0, &opened.1, &of_open)).await?;
    entry.begin(figures.clone());
    let record = entry.now();
    let caller = Caller(record.owner);
    let (windows, to_ask) = mpsc::channel(1);
    let (outcomes, to_write) = mpsc::channel(OUTCOMES);
    let input = app.files().path(&record.input_file_id)?;
    let input = File::open(input)
        .map_err(|e| ApiError::internal(format!("the input cannot be read: {e}")))?;
    let reader = feed::spawn(
        Feed {
            lines: Lines::new(BufReader::with_capacity(1 << 20, input), MAX_LINE_BYTES),
            known,
            only: Some(record.endpoint.clone()),
            is_live: false,
        },
        windows,
        figures.clone(),
    );
    let writer = journal::spawn(sink, to_write, figures.clone());
    let (reader, writer) = (reader.map_err(of_worker)?, writer.map_err(of_worker)?);
    let of_limit = app.clone();
    let run = Run {
        asker: Arc::new(Own::new(
            Inside::new(app.clone(), MAX_LINE_BYTES),
            caller,
            UNQUEUED,
        )),
        limit: Box::new(move |own| {
            let Ok(loaded) = of_limit.loaded() else {
                return 0;
            };
            loaded.text.map_or(WITHOUT_ENGINE, |text| {
                share::limit(text.parallel, &text.backend.status(), own)
            })
        }),
        retries: RETRIES,
    };
    let end = run.run(to_ask, outcomes, course).await;
    drop(turn);
    let done = blocking(move || {
        let failed = || ApiError::internal("a thread of the batch panicked");
        let read = reader.join().map_err(|_| failed())?;
        writer.join().map_err(|_| failed())?.map_err(of_worker)?;
        read.map_err(|e| ApiError::internal(format!("the input cannot be read: {e}")))
    });
    let done = done.await;
    entry.end();
    done?;
    match end {
        End::Complete | End::Stopped => Ok(true),
        End::Trouble(Trouble::Stopping | Trouble::Lost(_)) => Ok(false),
        End::Trouble(Trouble::Unreachable(reason)) => Err(ApiError::internal(reason)),
        End::Unwritable => Err(ApiError::internal("the results cannot be written")),
    }
}

fn of_worker(error: worker::Error) -> ApiError {
    ApiError::internal(error.to_string())
}

/// Opens the results, with what an earlier server has left in them.
fn open(app: &App, record: &Record, figures: &Figures) -> Result<(Known, Sink), ApiError> {
    let mut known = Known::default();
    let mut open = |id: &str| {
        let mut journal = Journal::open(&app.files().path(id)?).map_err(of_worker)?;
        let read = journal.read(&mut known, figures, |_| true);
        read.map_err(of_worker).map(|()| journal)
    };
    let (output, errors) = (open(&record.output_id)?, open(&record.error_id)?);
    Ok((known, Sink::Apart(output, errors)))
}

/// Puts the results down.
async fn finish(app: &Arc<App>, entry: &Arc<Entry>) -> Result<(), ApiError> {
    let (app, entry) = (app.clone(), entry.clone());
    blocking(move || {
        let is_expired = *entry.course.borrow() == Course::Drop;
        let cancelling = entry.now().cancelling_at().is_some();
        let end = match (is_expired, cancelling) {
            (_, true) => Status::Cancelled,
            (true, false) => Status::Expired,
            (false, false) => Status::Completed,
        };
        if end == Status::Completed {
            entry.change(&app, |record| record.set(Status::Finalizing))?;
        }
        // OpenAI's results leave out what was cancelled.
        let of_unasked = match end {
            Status::Expired => Some((
                "batch_expired",
                "the batch had no time left for this request",
            )),
            Status::Cancelled if entry.now().kind == Kind::Anthropic => Some((
                "batch_cancelled",
                "the batch was cancelled before this request",
            )),
            _ => None,
        };
        let unasked = match of_unasked {
            Some((code, message)) => tell_unasked(&app, &entry, code, message)?,
            None => 0,
        };
        let record = entry.now();
        let (output, errors) = (
            keep(&app, &record, &record.output_id, "output")?,
            keep(&app, &record, &record.error_id, "errors")?,
        );
        entry.change(&app, |record| {
            (record.has_output, record.has_errors) = (output, errors);
            record.unasked = unasked;
            record.set(end);
        })?;
        if record.kind == Kind::Anthropic {
            // Nobody asks for the input again.
            let _ = std::fs::remove_file(app.files().path(&record.input_file_id)?);
        }
        Ok(())
    })
    .await
}

/// Writes an error for each request that was not asked; gives how many there are.
fn tell_unasked(
    app: &App,
    entry: &Entry,
    code: &'static str,
    message: &str,
) -> Result<u64, ApiError> {
    let record = entry.now();
    let figures = Figures::default();
    let (mut known, mut sink) = open(app, &record, &figures)?;
    let unreadable =
        |e: std::io::Error| ApiError::internal(format!("the input cannot be read: {e}"));
    let input = File::open(app.files().path(&record.input_file_id)?).map_err(unreadable)?;
    let mut lines = Lines::new(BufReader::with_capacity(1 << 20, input), MAX_LINE_BYTES);
    while let Some(line) = lines.next_line().map_err(unreadable)? {
        let Ok(bytes) = line.bytes else { continue };
        let Ok(item) = Item::read(line.number, bytes, None) else {
            continue;
        };
        if known
            .requests
            .insert(hash_of(&item.custom_id), true)
            .is_some()
        {
            continue;
        }
        let written = Outcome::Unasked {
            custom_id: item.custom_id,
            code,
            message: message.to_string(),
        }
        .written();
        sink.write(&written).map_err(of_worker)?;
        figures.wrote(&written);
    }
    sink.sync().map_err(of_worker)?;
    let unasked = figures.failed();
    entry.begin(Arc::new(figures));
    entry.end();
    Ok(unasked)
}

/// Makes results a file; gives whether there are some.
fn keep(app: &App, record: &Record, id: &str, what: &str) -> Result<bool, ApiError> {
    let path = app.files().path(id)?;
    let bytes = std::fs::metadata(&path).map_or(0, |about| about.len());
    if bytes == 0 {
        // There is nothing in it that could be missed.
        let _ = std::fs::remove_file(&path);
        return Ok(false);
    }
    if record.kind == Kind::Anthropic {
        // Its results have a route of their own.
        return Ok(true);
    }
    app.files().register(Meta {
        id: id.to_string(),
        owner: record.owner,
        filename: format!("{}_{what}.jsonl", record.id),
        purpose: "batch_output".to_string(),
        bytes,
        created_at: unix(),
        expires_at: None,
    })?;
    Ok(true)
}
