//! `tenon segment mount`, `drain` and `unmount`.

use super::args::{DrainSegment, MountSegment, SegmentCommand, UnmountSegment};
use super::failure::Failure;
use super::limits::SEGMENT_POLL;
use super::report::Report;
use super::session::Session;
use super::text;
use serde_json::json;
use tenon_client::Client;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::{NodeId, SegmentId};
use tenon_protocol::segments::{MountSpec, SegmentCall, SegmentChange, SegmentInfo, SegmentState};
use tokio::time::sleep;

pub(super) async fn segment(session: &Session, command: SegmentCommand) -> Result<Report, Failure> {
    match command {
        SegmentCommand::Mount(mount) => self::mount(session, mount).await,
        SegmentCommand::Drain(drain) => self::drain(session, drain).await,
        SegmentCommand::Unmount(unmount) => self::unmount(session, unmount).await,
    }
}

async fn mount(session: &Session, mount: MountSegment) -> Result<Report, Failure> {
    let spec = MountSpec {
        len_bytes: mount.size.0,
        slots: mount.slots,
        huge_pages: mount.huge_pages.map(|choice| choice.0),
        file: mount.file,
    };
    let client = session.connect().await?;
    let info = change(session, &client, mount.node, SegmentChange::Mount(spec)).await?;
    let info = if mount.no_wait {
        info
    } else {
        wait(session, &client, info, |state| state != SegmentState::Mounting).await?
    };
    match &info.failure {
        Some(failure) => Err(Failure::new(ErrorCode::NoMemory, failure.clone())),
        None => Ok(report(&info)),
    }
}

async fn drain(session: &Session, drain: DrainSegment) -> Result<Report, Failure> {
    let client = session.connect().await?;
    let wanted = SegmentChange::Drain {
        segment: SegmentId(drain.segment),
    };
    Ok(report(&change(session, &client, drain.node, wanted).await?))
}

async fn unmount(session: &Session, unmount: UnmountSegment) -> Result<Report, Failure> {
    let client = session.connect().await?;
    let wanted = SegmentChange::Unmount {
        segment: SegmentId(unmount.segment),
        graceful_ms: unmount.graceful_ms,
        force: unmount.force,
    };
    let info = change(session, &client, unmount.node, wanted).await?;
    let info = if unmount.no_wait {
        info
    } else {
        wait(session, &client, info, |state| state == SegmentState::Gone).await?
    };
    Ok(report(&info))
}

async fn change(
    session: &Session,
    client: &Client,
    node: Option<NodeId>,
    change: SegmentChange,
) -> Result<SegmentInfo, Failure> {
    let call = SegmentCall { node, change };
    Ok(client.change_segment(call, session.deadline(0)).await?)
}

/// Asks again until the segment is in such a state. Without a deadline of the user's that may take as long as it takes.
async fn wait(
    session: &Session,
    client: &Client,
    mut info: SegmentInfo,
    is_there: impl Fn(SegmentState) -> bool,
) -> Result<SegmentInfo, Failure> {
    while !is_there(info.state) {
        sleep(SEGMENT_POLL).await;
        let reply = client.segments(Some(info.node), session.deadline(0)).await?;
        let found = reply.segments.into_iter().find(|one| one.segment == info.segment);
        info = found.ok_or_else(|| {
            let message = format!("node {} does not tell of segment {} any more", info.node, info.segment);
            Failure::new(ErrorCode::UnknownSegment, message)
        })?;
    }
    Ok(info)
}

fn report(info: &SegmentInfo) -> Report {
    Report {
        text: text::changed_segment(info),
        json: json!(info),
        ..Report::default()
    }
}
