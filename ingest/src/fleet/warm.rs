//! Telling a worker of a recipe, with the catalogs that it lacks, and having it open the data set before it is given rows.

use super::connect::{
    Connect, DESCRIBING_TIMEOUT, Greeted, OPENING_TIMEOUT, answer, greeted, refused, within,
};
use super::member::Reported;
use crate::wire::{Answer, Ask, Io, Offered, PlanId, Token, write_message};
use crate::{Error, ErrorKind, RecipeSpec, Result};
use bytes::Bytes;
use feedstock_dataset::StoredCatalog;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Bytes of a catalog that are sent between two signs of progress.
const CHUNK_BYTES: usize = 1 << 20;

/// Catalogs that a process sends at a time. Those that are not on a local disk are in its memory meanwhile.
static FEW: Semaphore = Semaphore::const_new(2);

/// What a rank can send to a worker that does not know its recipe.
#[derive(Clone)]
pub(crate) struct Introduction {
    pub(crate) spec: Arc<RecipeSpec>,
    /// The catalogs of its URIs, as far as they are stored here.
    pub(crate) catalogs: Arc<[Option<StoredCatalog>]>,
}

/// Has the worker at `member` open the data set of a recipe, for as long as it reports to be at work on that. Returns what it
/// reported of itself. `permit` is released when the worker first reports that it is at work: building a catalog may take hours.
pub(crate) async fn warm(
    connect: Arc<dyn Connect>,
    member: &str,
    token: Option<&Token>,
    (plan, introduction): (&PlanId, &Introduction),
    permit: OwnedSemaphorePermit,
) -> Result<Reported> {
    let permit = Mutex::new(Some(permit));
    let release = || drop(permit.lock().unwrap_or_else(PoisonError::into_inner).take());
    let Greeted { mut io, reported } = greeted(&*connect, member, token).await?;
    let mut introduced = introduction.has_catalogs();
    if introduced {
        // Another rank may have introduced itself and failed to send the catalogs.
        io = introduction.send(io, (&connect, member, token), &|| ()).await?;
    }
    loop {
        within(OPENING_TIMEOUT, member, write_message(&mut io, &Ask::Prepare(plan.clone()))).await?;
        match answer(&mut io, member, &release).await? {
            Answer::Prepared => return Ok(reported),
            Answer::Unknown if !introduced => {
                introduced = true;
                io = introduction.send(io, (&connect, member, token), &|| ()).await?;
            }
            other => return Err(refused(member, other)),
        }
    }
}

impl Introduction {
    fn has_catalogs(&self) -> bool {
        self.catalogs.iter().any(Option::is_some)
    }

    /// Sends the description of the recipe, and the catalogs that the worker lacks. Without these, it builds its own. Returns the
    /// connection, or a new one in its place; `at_work` is called at every sign of progress.
    ///
    /// Sending is a task, which goes on when the caller stops to wait: a stream is closed where others can serve meanwhile.
    pub(crate) async fn send(
        &self,
        io: Box<dyn Io>,
        (connect, member, token): (&Arc<dyn Connect>, &str, Option<&Token>),
        at_work: &impl Fn(),
    ) -> Result<Box<dyn Io>> {
        let (progress, mut seen) = watch::channel(());
        let (this, connect) = (self.clone(), connect.clone());
        let (to, token) = (member.to_owned(), token.cloned());
        let sending = tokio::spawn(async move {
            this.send_all(io, (&*connect, &to, token.as_ref()), &move || progress.send_replace(())).await
        });
        while seen.changed().await.is_ok() {
            at_work();
        }
        let ended = |error| Error::new(ErrorKind::Retryable, format!("{member}: sending was ended: {error}"));
        sending.await.map_err(ended)?
    }

    async fn send_all(
        &self,
        mut io: Box<dyn Io>,
        (connect, member, token): (&dyn Connect, &str, Option<&Token>),
        at_work: &(impl Fn() + Sync),
    ) -> Result<Box<dyn Io>> {
        let stored = (0..).zip(self.catalogs.iter());
        let offered = stored
            .filter_map(|(number, stored)| Some(Offered { number, listing: stored.as_ref()?.listing() }));
        let catalogs = offered.collect();
        let sent = async {
            write_message(&mut io, &Ask::Describe { catalogs }).await?;
            write_message(&mut io, &*self.spec).await
        };
        within(DESCRIBING_TIMEOUT, member, sent).await?;
        let wanted = match answer(&mut io, member, at_work).await? {
            Answer::Described { wanted } => wanted,
            other => return Err(refused(member, other)),
        };
        for number in wanted {
            if let Err(error) = self.send_catalog(&mut io, member, number, at_work).await {
                tracing::info!("{member} has to build a catalog: {error}");
                return Ok(greeted(connect, member, token).await?.io); // tables may be half sent
            }
        }
        Ok(io)
    }

    async fn send_catalog(
        &self,
        io: &mut Box<dyn Io>,
        member: &str,
        number: u32,
        at_work: &(impl Fn() + Sync),
    ) -> Result<()> {
        let stored = self.catalogs.get(number as usize).and_then(Option::as_ref);
        let not_offered = || Error::config(format!("{member} wants a catalog that was not offered"));
        let few = FEW.acquire().await.map_err(|e| Error::config(e.to_string()))?;
        let (index, tables) = stored.ok_or_else(not_offered)?.read().await?;
        let index = String::from_utf8(index).map_err(|e| Error::config(e.to_string()))?;
        let ask = Ask::Catalog { number, index };
        within(DESCRIBING_TIMEOUT, member, write_message(io, &ask)).await?;
        for table in &tables {
            send_table(io, member, table, at_work).await?;
        }
        drop(few);
        match answer(io, member, at_work).await? {
            Answer::Taken => {
                let bytes: usize = tables.iter().map(Bytes::len).sum();
                tracing::info!("sent a catalog of {bytes} bytes to {member}");
                Ok(())
            }
            other => Err(refused(member, other)),
        }
    }
}

async fn send_table(
    io: &mut Box<dyn Io>,
    member: &str,
    table: &Bytes,
    at_work: &(impl Fn() + Sync),
) -> Result<()> {
    for chunk in table.chunks(CHUNK_BYTES) {
        let sent = async {
            io.write_all(chunk).await?;
            io.flush().await
        };
        within(DESCRIBING_TIMEOUT, member, sent).await?;
        at_work();
    }
    Ok(())
}
