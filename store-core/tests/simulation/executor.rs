//! Tasks in one thread, run in the order in which they become ready, so that a run can be repeated.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// What a task does.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Whose task it is: a process, by its node, or a client.
pub(crate) type Owner = Option<usize>;

/// The tasks that may go on, in order.
type Ready = Arc<Mutex<VecDeque<u64>>>;

struct Alarm {
    task: u64,
    ready: Ready,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap().push_back(self.task);
    }
}

struct Task {
    owner: Owner,
    work: Work,
    waker: Waker,
}

/// All tasks of a run.
#[derive(Default)]
pub(crate) struct Tasks {
    by_id: BTreeMap<u64, Task>,
    ready: Ready,
    last: u64,
}

impl Tasks {
    /// Adds a task, to be run soon.
    pub(crate) fn spawn(&mut self, owner: Owner, work: Work) {
        self.last += 1;
        let (task, ready) = (self.last, Arc::clone(&self.ready));
        let waker = Waker::from(Arc::new(Alarm { task, ready }));
        waker.wake_by_ref();
        self.by_id.insert(task, Task { owner, work, waker });
    }

    /// A process has died, and what it was doing with it.
    pub(crate) fn kill(&mut self, node: usize) {
        self.by_id.retain(|_, task| task.owner != Some(node));
    }

    /// Runs one task that is ready as far as it goes. False if none is ready.
    pub(crate) fn run_one(&mut self) -> bool {
        let next = self.ready.lock().unwrap().pop_front();
        let Some(id) = next else { return false };
        let Some(task) = self.by_id.get_mut(&id) else {
            return true;
        };
        let mut context = Context::from_waker(&task.waker);
        if task.work.as_mut().poll(&mut context).is_ready() {
            self.by_id.remove(&id);
        }
        true
    }
}

struct SlotState<T> {
    value: Option<T>,
    is_filled: bool,
    waker: Option<Waker>,
}

/// A place for one value that a task waits for. What is put in first counts.
pub(crate) struct Slot<T>(Rc<RefCell<SlotState<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    pub(crate) fn new() -> Self {
        Self(Rc::new(RefCell::new(SlotState {
            value: None,
            is_filled: false,
            waker: None,
        })))
    }

    /// Puts a value in, unless there was one.
    pub(crate) fn fill(&self, value: T) {
        let mut state = self.0.borrow_mut();
        if state.is_filled {
            return;
        }
        state.is_filled = true;
        state.value = Some(value);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Slot<T> {
    /// What was put in, if it was.
    pub(crate) fn take(&self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }
}

impl<T> Future for Slot<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
