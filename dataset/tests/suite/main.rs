//! The public API of `feedstock-dataset`.
//!
//! One program, because each would compile and link the same libraries again.

mod bad_input_formats;
mod block_memory;
mod cache_disk;
mod catalog_large;
mod catalog_sources;
mod catalog_store;
mod concat;
mod damaged_files;
mod damaged_ipc;
mod damaged_parquet;
mod filter_sql;
mod format_common;
mod format_folder;
mod format_ipc;
mod format_parquet;
mod format_real_tools;
mod format_speech;
mod format_tars;
mod identity;
mod ipc_parts;
mod joined_pieces;
mod parquet_lists;
mod parquet_parts;
mod plan_sets;
mod quality;
mod selecting;
mod signed_urls;
mod splits;
mod storage_bad_days;
mod storage_contract;
mod storage_errors;
mod storage_faults;
mod storage_hedges;
mod storage_listing;
mod storage_presigned;
mod storage_redirects;
mod storage_support;
mod storage_versions;
mod tar_catalogs;
mod tar_headers;
mod tar_resume;
mod tar_resume_files;
mod weights;
