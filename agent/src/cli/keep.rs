//! `tenon touch`, `tenon pin` and `tenon unpin`.

use super::args::{Keys, PinKeys};
use super::failure::Failure;
use super::report::Report;
use super::session::Session;
use serde_json::json;
use tenon_protocol::message::{Keep, Pin};

pub(super) async fn touch(session: &Session, touch: Keys) -> Result<Report, Failure> {
    keep(session, touch.keys, Keep::Touch, "touched").await
}

pub(super) async fn pin(session: &Session, pin: PinKeys) -> Result<Report, Failure> {
    let how = pin.soft_pin_ms.map_or(Pin::Hard, |for_ms| Pin::Soft { for_ms });
    keep(session, pin.keys, Keep::Pin(how), "pinned").await
}

pub(super) async fn unpin(session: &Session, unpin: Keys) -> Result<Report, Failure> {
    keep(session, unpin.keys, Keep::Pin(Pin::None), "unpinned").await
}

async fn keep(session: &Session, keys: Vec<String>, how: Keep, done: &str) -> Result<Report, Failure> {
    let namespace = session.namespace()?;
    let client = session.connect().await?;
    let kept = client.keep(&namespace, keys.clone(), how, session.deadline(0)).await;
    let mut report = Report::default();
    let mut results = Vec::new();
    for (key, result) in keys.into_iter().zip(kept) {
        match result {
            Ok(true) => {
                report.text.push_str(&format!("{done} {key:?}\n"));
                results.push(json!({ "key": key, done: true }));
            }
            Ok(false) => {
                report.failures.push(Failure::miss(namespace.as_str(), &key));
                results.push(json!({ "key": key, done: false }));
            }
            Err(error) => {
                let failure = Failure::from(error).while_doing(format_args!("{key:?} was not {done}"));
                results.push(json!({ "key": key, "error": failure.json() }));
                report.failures.push(failure);
            }
        }
    }
    report.json = json!({ "results": results });
    Ok(report)
}
