//! One worker and its rank compared with the engine in this process, on the same cores.

use super::worker::By;
use super::{Bench, STEPS, WARM_STEPS, Worker, addresses, job, run, steady};
use crate::support::median;
use feedstock::workers::{ClientTls, FleetIdentity};
use feedstock::{Dataset, Workers};

const ROUNDS: usize = 5;

/// The name in the worker's certificate.
const NAME: &str = "feedstock-fleet";

struct Case {
    name: &'static str,
    /// `None` is the engine in this process.
    way: Option<(By, bool)>,
    rate: Vec<f64>,
    of_engine: Vec<f64>,
    rank_cpu: Vec<f64>,
    worker_cpu: Vec<f64>,
}

pub(super) fn measure(bench: &Bench) {
    let trust = Trust::new(bench);
    let cores = std::thread::available_parallelism().unwrap().get();
    for threads in [1, 2].into_iter().filter(|threads| *threads <= cores) {
        confine(threads);
        on(bench, &trust, threads);
        confine(cores);
    }
}

fn on(bench: &Bench, trust: &Trust, threads: usize) {
    let dataset = bench.dataset(); // its I/O threads run on the cores of this thread
    let ways = [
        ("engine in this process", None),
        ("worker, host's socket", Some((By::Socket, false))),
        ("worker, TCP", Some((By::Tcp, false))),
        ("worker, TCP with TLS", Some((By::Tcp, true))),
    ];
    let mut cases = ways.map(|(name, way)| Case {
        name,
        way,
        rate: vec![],
        of_engine: vec![],
        rank_cpu: vec![],
        worker_cpu: vec![],
    });
    for _ in 0..ROUNDS {
        let mut engine = 0.0;
        for case in &mut cases {
            let rate = round(bench, &dataset, trust, threads, case);
            if case.way.is_none() {
                engine = rate;
            }
            case.of_engine.push(100.0 * rate / engine);
        }
    }
    println!(
        "\n{:<28}{:>12}{:>12}{:>26}{:>12}",
        format!("{threads} threads, {threads} cores"),
        "images/s",
        "of engine",
        "CPU-s/1000 images: rank",
        "worker"
    );
    for mut case in cases {
        let [rate, share] = [&mut case.rate, &mut case.of_engine].map(|values| median(values));
        let [rank, worker] = [&mut case.rank_cpu, &mut case.worker_cpu].map(|values| median(values));
        let worker = if case.way.is_some() { format!("{worker:.3}") } else { String::new() };
        println!("{:<28}{rate:>12.0}{share:>10.1} %{rank:>26.3}{worker:>12}", case.name);
    }
    println!("medians of {ROUNDS} rounds; goal 85 %");
}

fn round(bench: &Bench, dataset: &Dataset, trust: &Trust, threads: usize, case: &mut Case) -> f64 {
    let job = job(dataset).threads(threads);
    let (job, workers) = match case.way {
        None => (job, vec![]),
        Some((by, tls)) => {
            let arguments = if tls { trust.arguments() } else { vec![] };
            let workers = vec![Worker::start(bench, by, threads, &arguments)];
            let named = addresses(&workers);
            (job.workers(if tls { trust.of(named) } else { named }), workers)
        }
    };
    let steady = steady(&mut run(&job), &workers, (WARM_STEPS, STEPS)).without_hedges();
    case.rate.push(steady.samples_per_s);
    case.rank_cpu.push(steady.cpu_per_1000);
    case.worker_cpu.push(steady.worker_cpu_per_1000);
    steady.samples_per_s
}

/// Restricts this thread, and every thread and process that it starts, to the first `cores` cores.
fn confine(cores: usize) {
    // SAFETY: all zeros is an empty set, CPU_SET stays inside it, and the kernel only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (0..cores).for_each(|core| libc::CPU_SET(core, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
}

/// Certificates and a token, with the worker's as files.
struct Trust {
    fleet: FleetIdentity,
    arguments: Vec<String>,
}

impl Trust {
    fn new(bench: &Bench) -> Self {
        let fleet = FleetIdentity::generate(&[NAME.into()]).unwrap();
        let file = |name: &str, text: &str| {
            let path = bench.folder().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let FleetIdentity { ca, server, token, .. } = &fleet;
        let arguments = [
            ("--tls-cert", file("worker.crt", &server.certificates)),
            ("--tls-key", file("worker.key", server.key.expose())),
            ("--client-ca", file("ca.crt", ca)),
            ("--token-file", file("token", token.expose())),
        ];
        let arguments = arguments.into_iter().flat_map(|(name, file)| [name.to_owned(), file]).collect();
        Self { fleet, arguments }
    }

    fn arguments(&self) -> Vec<&str> {
        self.arguments.iter().map(String::as_str).collect()
    }

    fn of(&self, workers: Workers) -> Workers {
        let FleetIdentity { ca, client, token, .. } = self.fleet.clone();
        let tls = ClientTls { ca, identity: Some(client), server_name: Some(NAME.to_owned()) };
        workers.tls(tls).token(token)
    }
}
