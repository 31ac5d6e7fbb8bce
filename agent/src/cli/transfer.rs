//! `tenon put` and `tenon get`.

use super::args::{Get, Put};
use super::failure::Failure;
use super::progress;
use super::report::Report;
use super::session::Session;
use super::source::Source;
use super::target::Target;
use super::text;
use serde_json::json;
use std::time::Instant;
use tenon_client::{ObjectInfo, PutOptions, default_deadline};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{Committed, Pin, PutOutcome};

/// Puts a file or standard input.
pub(super) async fn put(session: &Session, put: Put) -> Result<Report, Failure> {
    let name = session.name(&put.key)?;
    let mut source = Source::open(&put.file).await?;
    let len_bytes = source.len_bytes;
    let options = options(&put);
    let client = session.connect().await?;
    let doing = |failure: Failure| failure.while_doing(format_args!("cannot put {:?}", put.key));
    let started = Instant::now();
    let deadline = session.deadline(len_bytes);
    let stream = client.put_stream(&name, len_bytes, &options, deadline).await;
    let mut stream = stream.map_err(|error| doing(error.into()))?;
    let holders = stream.holders();
    let bar = progress::bar(len_bytes, session.somebody_looks());
    while let Some(bytes) = source.next().await? {
        if !session.has_own_deadline() {
            // However slow the disk is, each piece gets its time.
            stream.set_deadline(default_deadline(len_bytes - stream.written_bytes()));
        }
        let written = bytes.len() as u64;
        stream.write(bytes).await.map_err(|error| doing(error.into()))?;
        bar.inc(written);
    }
    let committed = stream.finish().await.map_err(|error| doing(error.into()))?;
    bar.finish_and_clear();
    let took = started.elapsed();
    let Committed {
        outcome,
        version,
        degraded,
        copies,
    } = committed;
    let is_stored = outcome == PutOutcome::Stored;
    let mut text = match is_stored {
        true => format!("stored {:?}, {len_bytes} bytes, version {version}\n", put.key),
        false => format!("already there, kept: {:?}, version {version}\n", put.key),
    };
    let missing = put.replicas.unwrap_or(1).saturating_sub(1 + copies);
    if missing > 0 && is_stored {
        text.push_str(&format!("{missing} of its replicas could not be placed\n"));
    }
    if !is_stored {
        text.push_str(&not_taken_over(&put));
    }
    Ok(Report {
        text,
        json: json!({
            "key": put.key,
            "namespace": name.namespace().as_str(),
            // What is kept may have another length, and other holders.
            "len_bytes": is_stored.then_some(len_bytes),
            "outcome": outcome,
            "version": version,
            "degraded": degraded,
            "holders": is_stored.then_some(holders),
            "copies": copies,
            "seconds": took.as_secs_f64(),
            "bytes_per_s": text::bytes_per_s(len_bytes, took),
        }),
        remark: Some(text::throughput(len_bytes, took)),
        ..Report::default()
    })
}

/// What was asked for beside the bytes, and does not go to an object that was there already.
fn not_taken_over(put: &Put) -> String {
    let asked = [
        (put.pin || put.soft_pin_ms.is_some(), "pin (`tenon pin` sets it)"),
        (put.fingerprint.is_some(), "fingerprint"),
        (put.replicas.is_some_and(|replicas| replicas > 1), "number of replicas"),
    ];
    let kept_without = asked.into_iter().filter(|(is_asked, _)| *is_asked);
    kept_without
        .map(|(_, what)| format!("it does not get the {what} that was asked for\n"))
        .collect()
}

fn options(put: &Put) -> PutOptions {
    let pin = match put.soft_pin_ms {
        Some(for_ms) => Pin::Soft { for_ms },
        None if put.pin => Pin::Hard,
        None => Pin::None,
    };
    let fingerprint = put.fingerprint.as_ref().map(|fingerprint| fingerprint.0.clone());
    PutOptions {
        node: put.node,
        ttl_ms: put.ttl_ms,
        pin,
        replicas: put.replicas,
        replace: put.replace,
        fingerprint: fingerprint.unwrap_or_default(),
        put_id: put.put_id,
    }
}

/// Gets an object into a file or to standard output.
pub(super) async fn get(session: &Session, get: Get) -> Result<Report, Failure> {
    if session.is_json() && get.output.as_os_str() == "-" {
        return Err(Failure::usage(
            "--json and the object cannot both go to standard output: name a file with -o FILE",
        ));
    }
    let name = session.name(&get.key)?;
    let client = session.connect().await?;
    let doing = |failure: Failure| failure.while_doing(format_args!("cannot get {:?}", get.key));
    let started = Instant::now();
    let opened = client
        .open(&name, session.deadline(0))
        .await
        .map_err(|error| doing(error.into()))?;
    let is_meant = |info: &ObjectInfo| {
        get.fingerprint
            .as_ref()
            .is_none_or(|wanted| wanted.0 == info.fingerprint)
    };
    let opened = opened.filter(|reader| is_meant(reader.info()));
    let mut reader = opened.ok_or_else(|| Failure::miss(name.namespace().as_str(), &get.key))?;
    let len_bytes = reader.info().len_bytes;
    let target = Target::open(&get.output)?;
    let bar = progress::bar(len_bytes, session.somebody_looks());
    for piece in 0..reader.pieces() {
        let bytes = match reader.read_piece(piece, session.deadline(PIECE_BYTES)).await {
            Ok(bytes) => bytes,
            Err(error) => {
                let failure = doing(error.into());
                let written = piece * PIECE_BYTES;
                return Err(match target.is_stream() && piece > 0 {
                    true => failure.while_doing(format_args!("the output ends after {written} of {len_bytes} bytes")),
                    false => failure,
                });
            }
        };
        let written = bytes.len() as u64;
        target.write(bytes).await?;
        bar.inc(written);
    }
    let is_stream = target.is_stream();
    target.keep()?;
    bar.finish_and_clear();
    let took = started.elapsed();
    let version = reader.info().version;
    Ok(Report {
        text: match is_stream {
            true => String::new(),
            false => format!("got {:?}, {len_bytes} bytes, version {version}\n", get.key),
        },
        json: json!({
            "key": get.key,
            "namespace": name.namespace().as_str(),
            "len_bytes": len_bytes,
            "version": version,
            "checksum": format!("{:#018x}", reader.info().checksums.whole),
            "output": get.output,
            "seconds": took.as_secs_f64(),
            "bytes_per_s": text::bytes_per_s(len_bytes, took),
        }),
        remark: Some(text::throughput(len_bytes, took)),
        ..Report::default()
    })
}
