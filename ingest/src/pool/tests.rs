use super::queue::{EARLY_MAX, FIRST};
use super::*;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;

impl Pool {
    fn turns(&self, overdue: u32) -> Turns {
        self.share(usize::MAX).turns(overdue)
    }
}

#[test]
fn a_share_has_at_most_its_tasks_at_work_and_holds_no_other_up() {
    const TASKS: usize = 200;
    let pool = Pool::new(4).unwrap();
    let (two, all) = (pool.share(2), pool.share(4));
    let at_work = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let (say, said) = channel();
    let (release, held) = channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let mut turns = two.turns(0);
    for _ in 0..TASKS {
        let (turn, at_work, held, say) = (turns.next(), at_work.clone(), held.clone(), say.clone());
        turns.submit(
            turn,
            Box::new(move |_| {
                let (now, most) = &*at_work;
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                held.lock().unwrap().recv().unwrap();
                now.fetch_sub(1, Ordering::SeqCst);
                say.send("two").unwrap();
            }),
        );
    }
    let mut others = all.turns(0);
    for _ in 0..TASKS {
        let (turn, say) = (others.next(), say.clone());
        others.submit(turn, Box::new(move |_| say.send("all").unwrap()));
    }
    let first: Vec<_> = said.iter().take(TASKS).collect();
    assert!(first.iter().all(|name| *name == "all"), "two threads wait, two make what others have queued");
    (0..TASKS).for_each(|_| release.send(()).unwrap());
    assert_eq!(said.iter().take(TASKS).filter(|name| *name == "two").count(), TASKS);
    assert_eq!(at_work.1.load(Ordering::SeqCst), 2);
}

#[test]
fn a_process_has_one_pool_that_grows_to_the_largest_share() {
    let (two, three) = (Pool::shared(2).unwrap(), Pool::shared(3).unwrap());
    assert!(Arc::ptr_eq(&two.0, &three.0));
    assert!(two.0.joins.lock().unwrap().len() >= 3);
    assert_eq!(two.share(1).most(), 1);
}

#[test]
fn what_a_share_has_queued_is_done_after_it_has_ended() {
    let pool = Pool::new(1).unwrap();
    let (say, said) = channel();
    let mut turns = pool.share(1).turns(0);
    for index in 0..50 {
        let (turn, say) = (turns.next(), say.clone());
        turns.submit(turn, Box::new(move |_| say.send(index).unwrap()));
    }
    drop((turns, say));
    assert_eq!(said.iter().collect::<Vec<i32>>(), (0..50).collect::<Vec<_>>());
    drop(pool.share(1));
    // The last task has sent; its thread may not have counted it as done yet.
    let since = Instant::now();
    while !pool.0.shared.tasks.lock().shares.is_empty() {
        assert!(since.elapsed() < Duration::from_secs(60), "an ended share stays");
        std::thread::yield_now();
    }
}

#[test]
fn runs_every_task_survives_panics_and_ends() {
    let done = Arc::new(AtomicUsize::new(0));
    let pool = Pool::new(3).unwrap();
    let mut turns = pool.turns(0);
    for i in 0..1000 {
        let done = done.clone();
        let turn = turns.next();
        turns.submit(
            turn,
            Box::new(move |_| {
                assert!(i != 500, "one task panics, on purpose");
                done.fetch_add(1, Ordering::Relaxed);
            }),
        );
    }
    drop((pool, turns)); // drains, then joins
    assert_eq!(done.load(Ordering::Relaxed), 999);
}

/// Queues a step of that name.
type Step<'a> = &'a dyn Fn(&Turns, Turn, &'static str);

fn steps<const N: usize>(step: Step<'_>, turns: &mut Turns, names: [&'static str; N]) {
    for name in names {
        let turn = turns.next();
        step(turns, turn, name);
    }
}

/// The names of steps in the order in which one thread makes them, after `queue` has queued them.
fn made(queue: impl FnOnce(&Pool, Step<'_>)) -> String {
    let (pool, (say, said)) = (Pool::new(1).unwrap(), channel());
    let (start, started) = channel::<()>();
    let mut first = pool.turns(0);
    let turn = first.next();
    first.submit(turn, Box::new(move |_| started.recv().unwrap()));
    queue(&pool, &|turns, turn, name| {
        let say = say.clone();
        turns.submit(turn, Box::new(move |_| say.send(name).unwrap()));
    });
    start.send(()).unwrap();
    drop((first, pool, say));
    said.iter().collect::<Vec<_>>().join(" ")
}

#[test]
fn runs_take_turns_step_by_step() {
    let order = made(|pool, step| {
        let (mut a, mut b) = (pool.turns(0), pool.turns(0));
        steps(step, &mut a, ["a0", "a1", "a2"]);
        steps(step, &mut b, ["b0", "b1", "b2"]);
    });
    assert_eq!(order, "a0 b0 a1 b1 a2 b2");
}

#[test]
fn the_oldest_step_goes_first_however_late_its_block_comes() {
    let order = made(|pool, step| {
        let mut a = pool.turns(0);
        let (first, second) = (a.next(), a.next());
        step(&a, second, "a1");
        step(&a, first, "a0");
    });
    assert_eq!(order, "a0 a1");
}

#[test]
fn overdue_steps_go_before_what_others_have_ahead() {
    let order = made(|pool, step| {
        let (mut a, mut late) = (pool.turns(0), pool.turns(2));
        steps(step, &mut a, ["a0", "a1"]);
        steps(step, &mut late, ["l0", "l1", "l2", "l3"]);
    });
    assert_eq!(order, "l0 l1 a0 l2 a1 l3");
}

#[test]
fn whoever_comes_late_again_and_again_keeps_nobody_waiting() {
    let order = made(|pool, step| {
        let mut a = pool.turns(0);
        steps(step, &mut a, ["a0", "a1", "a2"]);
        for _ in 0..EARLY_MAX + 3 {
            steps(step, &mut pool.turns(4), ["late"]);
        }
    });
    let early = order.split(' ').position(|name| name == "a0").unwrap();
    assert_eq!(early as u64, EARLY_MAX, "then in its turn: {order}");
}

#[test]
fn a_run_that_paused_neither_catches_up_nor_falls_behind() {
    let pool = Pool::new(1).unwrap();
    let mut paused = pool.turns(0);
    let before = paused.next();
    pool.0.shared.tasks.lock().served += 100;
    assert_eq!(paused.next(), Turn(FIRST + 100));
    assert_eq!(paused.next(), Turn(FIRST + 101));
    assert!(before < Turn(FIRST + 100));
}

/// Threads go to sleep between the tasks: a wake-up that is lost is waited for for ever.
#[test]
fn no_task_is_left_while_threads_sleep() {
    let pool = Pool::new(4).unwrap();
    let (one, all) = (pool.share(1), pool.share(4));
    std::thread::scope(|scope| {
        for (seed, share) in [(1, &one), (2, &all), (3, &all)] {
            scope.spawn(move || {
                let (mut turns, (say, said)) = (share.turns(0), channel());
                for round in 0..3000_u64 {
                    let tasks = |count: u64| {
                        (0..count).map(|_| {
                            let say = say.clone();
                            Box::new(move |_: &mut Scratch| say.send(()).unwrap()) as Task
                        })
                    };
                    let turn = turns.next();
                    let count = 1 + (round * seed) % 5;
                    turns.submit_all(turn, tasks(count).collect());
                    turns.submit(turn, tasks(1).next().unwrap());
                    for _ in 0..=count {
                        said.recv_timeout(Duration::from_secs(60)).expect("a task is left");
                    }
                }
            });
        }
    });
}

/// Returns the wall time of an empty task in µs: the median of some runs, each of which makes 4 steps of 256 rows again and again:
/// what a run with 4 slots has queued at most.
fn empty_task_us(threads: usize, queue_step: fn(&Turns, Turn, Vec<Task>)) -> f64 {
    const STEPS: usize = 4;
    const ROWS: usize = 256;
    const ROUNDS: usize = 60;
    let pool = Pool::new(threads).unwrap();
    let mut turns = pool.turns(0);
    let mut run = || {
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            let (left, (say, said)) = (Arc::new(AtomicUsize::new(STEPS * ROWS)), channel());
            for _ in 0..STEPS {
                let task = |_| -> Task {
                    let (left, say) = (left.clone(), say.clone());
                    Box::new(move |_| {
                        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                            say.send(()).unwrap();
                        }
                    })
                };
                let turn = turns.next();
                queue_step(&turns, turn, (0..ROWS).map(task).collect());
            }
            said.recv().unwrap();
        }
        begun.elapsed().as_secs_f64() * 1e6 / (STEPS * ROWS * ROUNDS) as f64
    };
    let mut times: Vec<f64> = (0..9).map(|_| run()).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// `cargo test -p feedstock-ingest --lib -- --ignored --nocapture cost_of_an_empty_task` prints the figures of docs/design.
#[test]
#[ignore = "prints figures"]
fn cost_of_an_empty_task() {
    for threads in [1, 2, 4, 8, 16, 64] {
        let singly = empty_task_us(threads, |turns, turn, tasks| {
            tasks.into_iter().for_each(|task| turns.submit(turn, task));
        });
        let at_once = empty_task_us(threads, Turns::submit_all);
        println!(
            "{threads} threads: {singly:.2} µs a task queued singly, {at_once:.2} µs of a step queued at once"
        );
    }
}
