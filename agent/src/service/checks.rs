//! What callers may ask, and what answers of other members may be.

use crate::peers::other_answer;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::limits::{
    BATCH_KEYS_MAX, OBJECT_LEN_BYTES_MAX, REPLICAS_MAX, RESERVATION_TTL_MS_MAX, SOFT_PIN_MS_MAX,
};
use tenon_protocol::message::{Pin, PutOptions, Reply};

/// A batch has at least one and at most [`BATCH_KEYS_MAX`] keys.
pub(super) fn check_batch(keys: usize) -> Result<(), ServiceError> {
    if keys == 0 || keys > BATCH_KEYS_MAX {
        let message = format!("a batch of {keys} keys: 1 to {BATCH_KEYS_MAX} are allowed");
        return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
    }
    Ok(())
}

pub(super) fn check_options(options: &PutOptions) -> Result<(), ServiceError> {
    check_pin(options.pin)?;
    if let Some(replicas) = options
        .replicas
        .filter(|&replicas| replicas == 0 || replicas > REPLICAS_MAX)
    {
        let message = format!("{replicas} replicas: 1 to {REPLICAS_MAX} are allowed");
        return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
    }
    if options.node.is_some() && options.replicas.unwrap_or(1) > 1 {
        let message = "an object that is placed on a named node alone has one replica";
        return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
    }
    if options
        .ttl_ms
        .is_some_and(|ttl_ms| ttl_ms == 0 || ttl_ms > RESERVATION_TTL_MS_MAX)
    {
        let message = format!("a reservation's time to live is 1 to {RESERVATION_TTL_MS_MAX} ms");
        return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
    }
    Ok(())
}

/// A soft pin has an end that can be waited for.
pub(super) fn check_pin(pin: Pin) -> Result<(), ServiceError> {
    match pin {
        Pin::Soft { for_ms } if for_ms == 0 || for_ms > SOFT_PIN_MS_MAX => {
            let message = format!("a soft pin of {for_ms} ms: 1 to {SOFT_PIN_MS_MAX} are allowed");
            Err(ServiceError::new(ErrorCode::InvalidArgument, message))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_len(len_bytes: u64) -> Result<(), ServiceError> {
    if len_bytes == 0 {
        return Err(ServiceError::new(
            ErrorCode::EmptyObject,
            "an object has at least one byte",
        ));
    }
    if len_bytes > OBJECT_LEN_BYTES_MAX {
        let message = format!("an object of {len_bytes} bytes: at most {OBJECT_LEN_BYTES_MAX} are allowed");
        return Err(ServiceError::new(ErrorCode::ObjectTooLarge, message));
    }
    Ok(())
}

pub(super) fn invalid(error: impl std::fmt::Display) -> ServiceError {
    ServiceError::new(ErrorCode::InvalidArgument, error.to_string())
}

/// Another reply than the call has.
pub(super) fn unexpected(reply: &Reply) -> ServiceError {
    match reply {
        Reply::Failed(error) => error.clone(),
        _ => other_answer(),
    }
}
