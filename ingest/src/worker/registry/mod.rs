//! The recipes that a worker knows, and the lanes that it makes of them.

mod starting;

use super::functions::{FunctionsLane, FunctionsRun, Held, not_allowed};
use super::lane::Lane;
use super::memory::Memory;
use super::receptions::{OpenWith, Reception, Receptions};
use super::schema::lane_schema;
use super::ticket::LaneTicket;
use crate::functions::RowExecutor;
use crate::recipe::{Recipe, RecipeSpec};
use crate::run::columns::unmapped;
use crate::run::engine::Engine;
use crate::run::job::{Map, sample_bytes};
use crate::run::share::Share;
use crate::wire::{LaneRequest, Offered, PlanId};
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::SchemaRef;
use feedstock_dataset::{Allow, CatalogCheck, OpenOptions, Position, Rank, StepShape, StepSize, Tail};
use feedstock_ops::DECODER_MEMORY;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, ready};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Recipes kept; the one that was not asked for longest goes first, and is described again when it is needed.
const RECIPES: usize = 64;

/// A catalog this old may be of files that have changed since: if it disagrees with a rank's, it is read again. So is one
/// that was not compared with the storage, whatever its age.
const FRESH: Duration = Duration::from_secs(2);

/// A worker refuses a stream, which is then requested elsewhere, if less than this is left for it.
const LEAST_BUDGET_BYTES: u64 = 16 << 20;

/// Rows of a lane in one batch of a Flight client, by default.
const ROWS_OF_LANE: u64 = 32;

/// Encoded bytes for a Flight client's lane, and steps made ahead of it.
const FLIGHT_BUDGET_BYTES: u64 = 256 << 20;
const FLIGHT_PLACES: u32 = 2;

/// The part of the memory in which samples are kept that several jobs ask for, in addition to that of the streams.
const SHARED_PART: u64 = 8;
const SHARED_MAX_BYTES: u64 = 4 << 30;

/// What a worker makes lanes of.
pub(crate) struct Registry {
    open_with: OpenWith,
    allow: Allow,
    engine: Engine,
    /// For the blocks and loans of streams.
    memory: Memory,
    /// For finished rows that wait to be sent.
    rows: Memory,
    /// What a stream reserves at least.
    least_bytes: u64,
    share: Arc<Share>,
    /// Catalogs that ranks send; `None` in the rank's own process.
    receptions: Option<Arc<Receptions>>,
    /// What runs functions of ranks; `None`: they are refused.
    code: Option<Arc<dyn RowExecutor>>,
    /// The functions loaded last, so that a rank that opens one stream after another finds their processes.
    held: Mutex<Option<Arc<Held>>>,
    known: Mutex<HashMap<PlanId, Known>>,
    pub(crate) samples: Arc<AtomicU64>,
}

/// A recipe being opened, or open, for all who ask.
type OpeningRecipe = Shared<BoxFuture<'static, Result<Arc<OpenedRecipe>>>>;

struct Known {
    spec: Arc<RecipeSpec>,
    opened: Option<OpeningRecipe>,
    asked: Instant,
    /// [`CatalogCheck::List`] once a rank saw another order than this worker.
    check: CatalogCheck,
}

struct OpenedRecipe {
    recipe: Recipe,
    maps: Vec<Map>,
    at: Instant,
    /// Stored catalogs of any size were compared with the storage.
    listed: bool,
    /// The recipe's functions, while a lane uses them.
    functions: Mutex<Weak<Held>>,
}

impl OpenedRecipe {
    /// The schema of what Flight clients get.
    fn schema(&self) -> Result<SchemaRef> {
        let dataset = &self.recipe.dataset;
        let rides = unmapped(dataset.block_reader().schema(), dataset, &self.maps)?;
        let outputs = self.maps.iter().map(|map| (map.output.clone(), map.chain.output().clone()));
        Ok(lane_schema(&outputs.collect::<Vec<_>>(), &rides))
    }

    /// What Flight calls lanes are the parts of the order.
    fn lanes(&self) -> Result<u32> {
        Ok(self.recipe.dataset.plan(&self.recipe.shuffle)?.strands().parts())
    }
}

/// Runs what is too long for a thread that serves connections.
async fn aside<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::new(ErrorKind::Bug, format!("{what} panicked: {error}")))
}

/// A lane as a Flight client sees it.
pub(crate) struct FlightLane {
    pub(crate) schema: SchemaRef,
    pub(crate) lane: Box<dyn Lane>,
}

impl Registry {
    pub(crate) fn new(
        open_with: OpenWith,
        allow: Allow,
        engine: Engine,
        memory: Memory,
        receptions: Option<Receptions>,
        code: Option<Arc<dyn RowExecutor>>,
    ) -> Self {
        Self {
            code,
            held: Mutex::default(),
            receptions: receptions.map(Arc::new),
            open_with,
            allow,
            engine,
            rows: memory.clone(),
            least_bytes: LEAST_BUDGET_BYTES,
            share: Arc::new(Share::new((memory.limit() / SHARED_PART).min(SHARED_MAX_BYTES))),
            memory,
            known: Mutex::default(),
            samples: Arc::default(),
        }
    }

    /// For one recipe, opened already, of a rank that has `budget_bytes`. Finished rows are not part of them: the places of each
    /// stream bound them, as the rank's slots do.
    pub(crate) fn holding(
        recipe: Recipe,
        maps: Vec<Map>,
        spec: &RecipeSpec,
        engine: Engine,
        budget_bytes: u64,
    ) -> Result<Self> {
        let code = recipe.executor.clone();
        let opened =
            OpenedRecipe { recipe, maps, at: Instant::now(), listed: true, functions: Mutex::default() };
        let opened = Some(ready(Ok(Arc::new(opened))).boxed().shared());
        let (spec_kept, asked) = (Arc::new(spec.clone()), Instant::now());
        let known = Known { spec: spec_kept, opened, asked, check: CatalogCheck::Auto };
        let this = Self {
            code,
            held: Mutex::default(),
            receptions: None,
            open_with: Arc::new(OpenOptions::default),
            allow: Allow::default(),
            engine,
            memory: Memory::of_rank(budget_bytes),
            rows: Memory::unlimited(),
            least_bytes: 0,
            share: Arc::new(Share::new(0)), // the streams of one rank need different samples
            known: Mutex::default(),
            samples: Arc::default(),
        };
        this.known().insert(PlanId::of(spec)?, known);
        Ok(this)
    }

    /// Samples that one stream took from another.
    pub(crate) fn shared_samples(&self) -> u64 {
        self.share.taken.load(Ordering::Relaxed)
    }

    /// Recipes known.
    pub(crate) fn len(&self) -> usize {
        self.known().len()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The descriptions known, for those who list them.
    pub(crate) fn specs(&self) -> Vec<(PlanId, Arc<RecipeSpec>)> {
        self.known().iter().map(|(id, known)| (id.clone(), known.spec.clone())).collect()
    }

    /// Takes a description down, after checking what it names; nothing is opened yet.
    pub(crate) fn describe(&self, spec: RecipeSpec) -> Result<PlanId> {
        let id = self.checked(&spec)?;
        self.keep(id.clone(), spec);
        Ok(id)
    }

    /// As [`describe`](Self::describe), for a rank that can send catalogs; returns those that are lacking here.
    pub(crate) async fn introduce(&self, spec: RecipeSpec, offered: &[Offered]) -> Result<Vec<Reception>> {
        let id = self.checked(&spec)?;
        let is_opened = self.known().get(&id).is_some_and(|known| known.opened.is_some());
        let wanted = match &self.receptions {
            Some(receptions) if !is_opened => receptions.wanted(&spec, offered).await,
            _ => Vec::new(),
        };
        // Last, so that no connection that knows the recipe builds a catalog that is about to come.
        self.keep(id, spec);
        Ok(wanted)
    }

    /// Returns the name of a recipe, all of whose URIs may be read.
    fn checked(&self, spec: &RecipeSpec) -> Result<PlanId> {
        let allow = match &spec.functions {
            Some(functions) if self.code.is_none() => return Err(not_allowed(functions)),
            // Code that makes the items reads what it likes, and indexes hold no data.
            Some(_) => self.allow.clone().and_indexes(),
            None => self.allow.clone(),
        };
        spec.uris().iter().try_for_each(|uri| allow.check(uri))?;
        PlanId::of(spec)
    }

    fn keep(&self, id: PlanId, spec: RecipeSpec) {
        let mut known = self.known();
        if known.len() >= RECIPES && !known.contains_key(&id) {
            let oldest = known.iter().min_by_key(|(_, known)| known.asked).map(|(id, _)| id.clone());
            oldest.and_then(|id| known.remove(&id));
        }
        known.entry(id).or_insert_with(|| Known {
            spec: Arc::new(spec),
            opened: None,
            asked: Instant::now(),
            check: CatalogCheck::Auto,
        });
    }

    /// Opens a lane: its data set, if that is not open, its plan, and a run of the engine. `None`: the recipe is not known
    /// (any more).
    ///
    /// A worker that sees another order than the rank opens its data set once more, with a listing of the storage.
    pub(crate) async fn open(self: &Arc<Self>, request: LaneRequest) -> Result<Option<Box<dyn Lane>>> {
        let mut reopened = false;
        loop {
            let Some(opened) = self.known_and_opened(&request.plan).await? else { return Ok(None) };
            let (this, used, asked) = (self.clone(), opened.clone(), request.clone());
            match aside("opening a lane", move || this.start_rows(&used, asked)).await? {
                Ok(lane) => return Ok(Some(lane)),
                Err(Refused::OtherOrder(_)) if !reopened && self.reopens(&request.plan, &opened) => {
                    reopened = true;
                }
                Err(refused) => return Err(refused.into()),
            }
        }
    }

    /// Starts a lane for a rank, whose rows go through the recipe's functions.
    fn start_rows(&self, opened: &OpenedRecipe, request: LaneRequest) -> Result<Box<dyn Lane>, Refused> {
        let held = self.functions(opened)?;
        let lane: Box<dyn Lane> = Box::new(self.start(opened, request)?);
        let (Some(held), Some(spec)) = (held, &opened.recipe.functions) else { return Ok(lane) };
        let tensors =
            opened.maps.iter().map(|map| (map.output.clone(), map.chain.output().clone())).collect();
        let (functions, dataset) = (held.lane()?, opened.recipe.dataset.clone());
        let run = FunctionsRun { tensors, fields: spec.fields()?, functions, dataset };
        Ok(Box::new(FunctionsLane::new(lane, run, held)))
    }

    /// Returns the recipe's functions, after loading them if no lane uses them. Blocks while it loads.
    fn functions(&self, opened: &OpenedRecipe) -> Result<Option<Arc<Held>>> {
        let Some(spec) = &opened.recipe.functions else { return Ok(None) };
        let mut loaded = opened.functions.lock().unwrap_or_else(PoisonError::into_inner); // a single store
        if let Some(held) = loaded.upgrade() {
            return Ok(Some(held));
        }
        let code = self.code.as_ref().ok_or_else(|| not_allowed(spec))?;
        let held = Arc::new(Held::new(code.load(spec, opened.recipe.seed(), self.engine.threads())?));
        *loaded = Arc::downgrade(&held);
        let former = self.held.lock().unwrap_or_else(PoisonError::into_inner).replace(held.clone());
        drop(former); // without the lock
        Ok(Some(held))
    }

    /// Ends the functions of all recipes and their processes; rows under way are given up.
    pub(crate) fn stop_functions(&self) {
        let last = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let opened: Vec<Arc<OpenedRecipe>> = self
            .known()
            .values()
            .filter_map(|known| known.opened.as_ref()?.peek()?.as_ref().ok().cloned())
            .collect();
        // Without a wait for those that are being loaded.
        let used = opened.iter().filter_map(|opened| opened.functions.try_lock().ok()?.upgrade());
        for held in last.into_iter().chain(used) {
            held.stop();
        }
    }

    /// Whether the data set of a recipe is opened again because its catalog may be out of date; `opened` is what
    /// disagreed with a rank.
    fn reopens(&self, id: &PlanId, opened: &Arc<OpenedRecipe>) -> bool {
        if opened.listed && opened.at.elapsed() <= FRESH {
            return false;
        }
        // Another stream may have had it opened again already.
        if let Some(known) = self.known().get_mut(id)
            && known
                .opened
                .as_ref()
                .and_then(Shared::peek)
                .is_some_and(|held| held.as_ref().is_ok_and(|held| Arc::ptr_eq(held, opened)))
        {
            (known.opened, known.check) = (None, CatalogCheck::List);
        }
        true
    }

    /// A lane for a Flight client: of everything, as one rank.
    pub(crate) async fn flight(self: &Arc<Self>, ticket: LaneTicket) -> Result<Option<FlightLane>> {
        self.check_for_flight(&ticket.plan)?;
        let Some(opened) = self.known_and_opened(&ticket.plan).await? else { return Ok(None) };
        let this = self.clone();
        aside("opening a lane", move || this.start_flight(&opened, &ticket)).await?.map(Some)
    }

    /// The schema of a recipe's lanes for Flight, and their number.
    pub(crate) async fn facts(self: &Arc<Self>, id: &PlanId) -> Result<Option<(SchemaRef, u32)>> {
        self.check_for_flight(id)?;
        let Some(opened) = self.known_and_opened(id).await? else { return Ok(None) };
        Ok(Some((opened.schema()?, opened.lanes()?)))
    }

    /// Refuses recipes whose results Flight clients cannot get, before anything of them is opened or loaded.
    fn check_for_flight(&self, id: &PlanId) -> Result<()> {
        let known = self.known();
        match known.get(id).and_then(|known| known.spec.functions.as_ref()) {
            Some(functions) => Err(Error::config(format!(
                "lanes with results of {functions} are for feedstock's own loaders; Arrow Flight clients can read pipelines \
                 without executor=\"worker\""
            ))),
            None => Ok(()),
        }
    }

    /// Opens the data set of a recipe; false if the recipe is not known (any more).
    pub(crate) async fn prepare(self: &Arc<Self>, id: PlanId) -> Result<bool> {
        let Some(opened) = self.known_and_opened(&id).await? else { return Ok(false) };
        if opened.recipe.functions.is_some() {
            // Other recipes' functions may have taken the place of these since the recipe was opened.
            let this = self.clone();
            aside("loading functions", move || this.functions(&opened)).await??;
        }
        Ok(true)
    }

    async fn known_and_opened(self: &Arc<Self>, id: &PlanId) -> Result<Option<Arc<OpenedRecipe>>> {
        match self.asked(id) {
            Some(opening) => opening.await.map(Some),
            None => Ok(None),
        }
    }

    fn start_flight(&self, opened: &OpenedRecipe, ticket: &LaneTicket) -> Result<FlightLane> {
        let lanes = opened.lanes()?;
        if ticket.lane >= lanes {
            let message = format!("there is no lane {}: this plan has {lanes}", ticket.lane);
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        let rows = match ticket.rows {
            0 => ROWS_OF_LANE * u64::from(lanes),
            rows => rows,
        };
        let shape = StepShape { size: StepSize::Rows(rows), rank: Rank::new(0, 1), tail: Tail::Short };
        let plan = opened.recipe.plan(&shape)?;
        let request = LaneRequest {
            plan: ticket.plan.clone(),
            cursor: plan.cursor(ticket.epoch, Position(ticket.position)),
            shape,
            strands: plan.strands().of_part(ticket.lane),
            end_epoch: Some(ticket.epoch.saturating_add(1)),
            budget_bytes: FLIGHT_BUDGET_BYTES,
            most_bytes: FLIGHT_BUDGET_BYTES,
            sample_bytes: sample_bytes(DECODER_MEMORY, FLIGHT_BUDGET_BYTES),
            places: FLIGHT_PLACES,
            overdue: 0,
        };
        let lane = self.start(opened, request).map_err(Error::from)?;
        Ok(FlightLane { schema: opened.schema()?, lane: Box::new(lane) })
    }

    /// Returns what opens a recipe, once for all who ask. It is a separate task, which goes on when those who ask hang up: a
    /// catalog may take minutes, and the next one to ask finds it. After an error, it is opened anew for those who ask later.
    fn asked(self: &Arc<Self>, id: &PlanId) -> Option<OpeningRecipe> {
        let mut all = self.known();
        let known = all.get_mut(id)?;
        known.asked = Instant::now();
        if known.opened.is_none() {
            let (this, id, spec, check) = (self.clone(), id.clone(), known.spec.clone(), known.check);
            let opening = tokio::spawn(async move {
                // Boxed: the types of what opens data sets are deep.
                let opened = this.opened(&spec, check).boxed().await;
                if opened.is_err()
                    && let Some(known) = this.known().get_mut(&id)
                {
                    known.opened = None;
                }
                opened
            });
            let ended = |error: tokio::task::JoinError| match error.is_panic() {
                true => Error::new(ErrorKind::Bug, format!("opening a data set panicked: {error}")),
                false => Error::new(ErrorKind::Retryable, "the worker stops; ask another one"),
            };
            known.opened = Some(opening.map(move |opened| opened.map_err(ended)?).boxed().shared());
        }
        known.opened.clone()
    }

    async fn opened(self: &Arc<Self>, spec: &RecipeSpec, check: CatalogCheck) -> Result<Arc<OpenedRecipe>> {
        let received = self.receptions.as_ref().filter(|_| check != CatalogCheck::List);
        if let Some(receptions) = received {
            receptions.ended(&spec.dataset.sources()).await;
        }
        let open_with = || {
            let mut options = (self.open_with)();
            options.catalog.sources.extend(received.map(|receptions| receptions.source()));
            if check == CatalogCheck::List {
                // A rank sees another order, so what others made may be out of date.
                (options.catalog.check, options.catalog.sources) = (check, Vec::new());
            }
            options
        };
        let recipe = spec.open(&open_with).await?;
        let compiled = recipe.clone();
        let maps = aside("compiling ops", move || compiled.compile()).await??;
        let (at, listed) = (Instant::now(), check == CatalogCheck::List);
        let opened = Arc::new(OpenedRecipe { recipe, maps, at, listed, functions: Mutex::default() });
        if opened.recipe.functions.is_some() {
            // Now, so that a rank learns before its first row what does not load.
            let (this, used) = (self.clone(), opened.clone());
            aside("loading functions", move || this.functions(&used).map(drop)).await??;
        }
        Ok(opened)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PlanId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner) // entries are stored and removed whole
    }
}

/// Why there is no lane.
enum Refused {
    /// The plans differ: the files changed since one of both was computed.
    OtherOrder(Error),
    Because(Error),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::OtherOrder(error) | Refused::Because(error) => error,
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Because(error)
    }
}
