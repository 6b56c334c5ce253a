//! What pins an object's version if its server sends no ETag.

use crate::format_common::{options as open_options, picture, tar_of};
use crate::storage_support::{data, options, storage};
use feedstock_dataset::{CatalogStore, Dataset, ErrorKind};
use feedstock_testkit::{FaultProxy, StaticServer};

/// Python's `http.server` sends `Last-Modified` but no ETag.
#[tokio::test]
async fn an_object_without_an_etag_is_pinned_by_its_time_of_change() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("x");
    std::fs::write(&at, data(1_000, 3)).unwrap();
    let server = StaticServer::start_with_times(folder.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    let storage = storage(options());
    let object = storage.head(&format!("{}/x", proxy.endpoint())).await.unwrap();
    assert!(object.etag.as_deref().unwrap().starts_with("modified:"), "{object:?}");
    assert_eq!(storage.read(&object, 0..1_000).await.unwrap(), data(1_000, 3));
    assert!(proxy.log()[1].header("if-unmodified-since").is_some());
    std::fs::write(&at, data(1_000, 4)).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(7);
    std::fs::File::options().write(true).open(&at).unwrap().set_modified(later).unwrap();
    let error = storage.read(&object, 0..1_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

#[tokio::test]
async fn a_catalog_states_where_only_the_size_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let members: Vec<_> = (0..3).map(|i| (format!("{i}.jpg"), picture(i, 500))).collect();
    std::fs::write(folder.path().join("x.tar"), tar_of(&members)).unwrap();
    let notes = |server: StaticServer| async move {
        let url = format!("{}/x.tar", server.endpoint());
        let dataset = Dataset::open_with(&url, open_options(CatalogStore::Nowhere)).await.unwrap();
        dataset.catalog().notes().join("\n")
    };
    let by_size = notes(StaticServer::start_without_etags(folder.path()).unwrap()).await;
    assert!(by_size.contains("only a change of its size is noticed"), "{by_size}");
    for pinned in [StaticServer::start(folder.path()), StaticServer::start_with_times(folder.path())] {
        let notes = notes(pinned.unwrap()).await;
        assert!(!notes.contains("size"), "{notes}");
    }
}
