//! One suite for every engine: what the contract of the engine traits promises, as checks that each can fail.
