//! What a run is like and which faults come when, drawn from its seed before it begins.
//!
//! Each run has some kinds of faults only, so that there are also runs in which little goes wrong and much is promised.
//! A [`Profile`] has runs in which one kind of trouble meets much work on few keys.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Faults come for so long at most; then all is mended.
const FAULTS_MS_MAX: u64 = 60_000;

/// The quiet time at the end. It covers the longest back-off of probes (5 s), the look at pending objects by the second
/// home (20 s) and the life of reservations (6 s).
pub(crate) const QUIET_MS: u64 = 45_000;

/// What dies after a drain is dead for so long at most.
const DEATH_MS_MAX: u64 = 5_000;

/// With a delay of so much in each direction, the usual one of late packets added, questions are answered within the
/// 2 s that homes wait.
pub(crate) const BEARABLE_DELAY_MS: u64 = 700;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A process is killed; its host refuses connections.
    Kill,
    /// A host loses power: nobody is told.
    PowerOff,
    Hang,
    Partition,
    Isolate,
    CutLink,
    OneWay,
    Loss,
    Slow,
    Jump,
}

const KINDS: [Kind; 10] = [
    Kind::Kill,
    Kind::PowerOff,
    Kind::Hang,
    Kind::Partition,
    Kind::Isolate,
    Kind::CutLink,
    Kind::OneWay,
    Kind::Loss,
    Kind::Slow,
    Kind::Jump,
];

/// What the runs of some seeds have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Nothing: any kinds of faults, much work or little.
    Any,
    /// Links fail, lose and are slow while processes live: homes are reached by some and not by others.
    Links,
    /// Processes stand still.
    Halts,
    /// Processes die, and others are out of reach meanwhile.
    Lives,
    /// Nothing fails, and much is delivered late and twice.
    Echoes,
    /// Nodes evict what they hold, while some fail.
    Full,
    /// Objects are copied, replaced and moved, and nodes drained, while some fail.
    Moves,
}

impl Profile {
    pub(crate) const ALL: [Self; 7] = [
        Self::Any,
        Self::Links,
        Self::Halts,
        Self::Lives,
        Self::Echoes,
        Self::Full,
        Self::Moves,
    ];

    /// What it is called where seeds are named.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Links => "links",
            Self::Halts => "halts",
            Self::Lives => "lives",
            Self::Echoes => "echoes",
            Self::Full => "full",
            Self::Moves => "moves",
        }
    }

    fn kinds(self, rng: &mut ChaCha8Rng) -> Vec<Kind> {
        match self {
            Self::Any => match rng.random_range(0..3) {
                0 => KINDS.into_iter().filter(|_| rng.random_range(0..3) == 0).collect(),
                some => (0..some).filter_map(|_| pick(rng, &KINDS)).collect(),
            },
            Self::Links => vec![Kind::CutLink, Kind::OneWay, Kind::Loss, Kind::Slow],
            Self::Halts => vec![Kind::Hang, Kind::Slow],
            Self::Lives => vec![Kind::Kill, Kind::PowerOff, Kind::Isolate, Kind::Slow],
            Self::Echoes => vec![Kind::Slow],
            Self::Full => KINDS.into_iter().filter(|_| rng.random_range(0..4) == 0).collect(),
            Self::Moves => [
                Kind::Kill,
                Kind::PowerOff,
                Kind::CutLink,
                Kind::Isolate,
                Kind::Hang,
                Kind::Slow,
            ]
            .into_iter()
            .filter(|_| rng.random_range(0..3) == 0)
            .collect(),
        }
    }
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// The process dies and begins another life, with nothing, when the fault ends.
    Crash { node: usize, is_host_up: bool },
    /// The process stands still.
    Hang { node: usize },
    /// Nothing passes between these nodes and the others.
    Split { side: Vec<bool> },
    /// Nothing passes between two nodes, in one direction or both.
    Cut { from: usize, to: usize, both: bool },
    /// Much is lost between two nodes.
    Loss { from: usize, to: usize, permille: u32 },
    /// Everything takes longer between two nodes.
    Slow { from: usize, to: usize, delay_ms: u64 },
    /// A host's clock leaps forward.
    Jump { node: usize, ms: u64 },
}

/// What goes wrong, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) what: What,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// A node takes nothing new and moves what it holds, for some time; what is left is dropped then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drain {
    pub(crate) node: usize,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// What there is beside puts of one replica that keep what is there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Variety {
    /// Of 100 puts so many ask for two or three replicas.
    pub(crate) copied_percent: u32,
    /// Of 100 puts so many take the place of what the key has.
    pub(crate) replaced_percent: u32,
    /// A node drains its segment and takes another one into use at one tick in so many; 0: it does not.
    pub(crate) renewals_one_in: u32,
    pub(crate) drains: Vec<Drain>,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) keys: usize,
    pub(crate) clients: usize,
    /// Makes other key names, and so other homes, in each run.
    pub(crate) salt: u32,
    pub(crate) repeated_permille: u32,
    pub(crate) late_permille: u32,
    /// The longest pause of a client between two operations.
    pub(crate) pause_ms_max: u64,
    pub(crate) faults: Vec<Fault>,
    /// When faults and operations are over.
    pub(crate) quiet_from: u64,
    /// Nodes let go of what they hold now and then.
    pub(crate) evicts: bool,
    pub(crate) variety: Variety,
}

impl Plan {
    pub(crate) fn draw(profile: Profile, rng: &mut ChaCha8Rng) -> Self {
        let is_any = profile == Profile::Any;
        let nodes = rng.random_range(3..=if is_any { 12 } else { 5 });
        let quiet_from = rng.random_range(15_000..=FAULTS_MS_MAX);
        let kinds = profile.kinds(rng);
        let gap_ms_max = [2_000, 6_000, 15_000, 40_000][rng.random_range(0..4)];
        let mut faults = Vec::new();
        // Nodes have some time to find each other first.
        let mut from = 3_000;
        while let Some(kind) = pick(rng, &kinds) {
            from += rng.random_range(0..=gap_ms_max);
            if from >= quiet_from {
                break;
            }
            let until = (from + rng.random_range(200..=12_000)).min(quiet_from);
            let what = draw_what(rng, kind, nodes);
            faults.push(Fault { what, from, until });
        }
        let plan = Self {
            nodes,
            keys: rng.random_range(2..=6),
            clients: rng.random_range(2..=5),
            salt: rng.random(),
            repeated_permille: [0, 0, 10, 50][rng.random_range(0..4)],
            late_permille: [0, 10, 100][rng.random_range(0..3)],
            pause_ms_max: [100, 500, 2_000][rng.random_range(0..3)],
            faults,
            quiet_from,
            evicts: profile == Profile::Full,
            variety: Variety::default(),
        };
        match profile {
            Profile::Any => plan.varied(rng, 3),
            Profile::Echoes => Self {
                repeated_permille: 200,
                late_permille: 200,
                ..plan.crowded()
            },
            Profile::Links | Profile::Halts | Profile::Lives => plan.crowded(),
            Profile::Full => plan.crowded().varied(rng, 2),
            Profile::Moves => {
                let evicts = rng.random_range(0..3) == 0;
                Self {
                    evicts,
                    ..plan.crowded()
                }
                .varied(rng, 1)
            }
        }
    }
}

impl Plan {
    /// The same with more work on fewer keys.
    fn crowded(self) -> Self {
        Self {
            keys: 2,
            pause_ms_max: 100,
            ..self
        }
    }
}

impl Plan {
    /// One in so many plans with copies, replacements, moves and drains. They are drawn after everything else: the others are as they
    /// were without.
    fn varied(mut self, rng: &mut ChaCha8Rng, one_in: u32) -> Self {
        if rng.random_range(0..one_in) > 0 {
            return self;
        }
        self.variety = Variety {
            copied_percent: [0, 20, 60][rng.random_range(0..3)],
            replaced_percent: [0, 20, 60][rng.random_range(0..3)],
            renewals_one_in: [0, 20, 100][rng.random_range(0..3)],
            drains: Vec::new(),
        };
        let gap_ms_max = [0, 5_000, 15_000][rng.random_range(0..3)];
        if gap_ms_max == 0 {
            return self;
        }
        let mut from = 3_000;
        loop {
            from += rng.random_range(0..=gap_ms_max);
            let until = from + rng.random_range(500..=5_000);
            if until + DEATH_MS_MAX >= self.quiet_from {
                break;
            }
            let node = rng.random_range(0..self.nodes);
            self.variety.drains.push(Drain { node, from, until });
            if rng.random() {
                // What has two replicas may lie there alone.
                let node = (node + rng.random_range(1..self.nodes)) % self.nodes;
                self.variety.drains.push(Drain { node, from, until });
            }
            if rng.random() {
                let is_host_up = rng.random();
                self.faults.push(Fault {
                    what: What::Crash { node, is_host_up },
                    from: until,
                    until: until + rng.random_range(100..=DEATH_MS_MAX),
                });
            }
        }
        self
    }
}

fn pick<T: Copy>(rng: &mut ChaCha8Rng, choices: &[T]) -> Option<T> {
    (!choices.is_empty()).then(|| choices[rng.random_range(0..choices.len())])
}

fn draw_what(rng: &mut ChaCha8Rng, kind: Kind, nodes: usize) -> What {
    let node = rng.random_range(0..nodes);
    let from = node;
    let to = (from + rng.random_range(1..nodes)) % nodes;
    match kind {
        Kind::Kill => What::Crash { node, is_host_up: true },
        Kind::PowerOff => What::Crash {
            node,
            is_host_up: false,
        },
        Kind::Hang => What::Hang { node },
        Kind::Partition => What::Split {
            side: (0..nodes).map(|_| rng.random()).collect(),
        },
        Kind::Isolate => What::Split {
            side: (0..nodes).map(|other| other == node).collect(),
        },
        Kind::CutLink => What::Cut { from, to, both: true },
        Kind::OneWay => What::Cut { from, to, both: false },
        Kind::Loss => What::Loss {
            from,
            to,
            permille: rng.random_range(50..=700),
        },
        Kind::Slow => What::Slow {
            from,
            to,
            delay_ms: if rng.random() {
                rng.random_range(50..=BEARABLE_DELAY_MS)
            } else {
                rng.random_range(50..=3_000)
            },
        },
        Kind::Jump => What::Jump {
            node,
            ms: rng.random_range(200..=20_000),
        },
    }
}
