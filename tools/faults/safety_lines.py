"""Lines of the package that keep a promise of `docs/reliability.md`, each with the tests that notice when it is gone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SafetyLine:
    """A line of a module, without its indentation, and what stands in its place in a mutant.

    Parameters
    ----------
    file : str
        Module, below the package.
    text : str
        The line; it is there exactly once, in the whole file or in the function, class or method named by `within`.
    guards : tuple of str
        Tests, below ``tests``, of which one at least fails without the line.
    instead : str
        By default a condition is never true, and any other line does nothing.
    """

    file: str
    text: str
    guards: tuple[str, ...]
    within: str = ""
    instead: str = ""

    def __post_init__(self) -> None:
        if not self.instead:
            object.__setattr__(self, "instead", "if False:" if self.text.startswith("if ") else "pass")

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def _durable(*writers: str) -> tuple[str, ...]:
    """Name the test of durability for some writers."""
    return tuple(
        f"test_durability.py::test_a_power_cut_takes_nothing_that_has_its_name[{name}]" for name in writers
    )


def _test(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"test_{module}.py::test_{name}" for name in names)


_SYNCS = (
    SafetyLine("core/atomic_files.py", "os.fsync(descriptor)", _durable("train")),
    SafetyLine("core/atomic_files.py", "sync_together([*before, partial])", _durable("predict")),
    SafetyLine("core/atomic_files.py", "sync(path.parent)", _durable("predict"), "replacing"),
    SafetyLine("core/atomic_files.py", "sync_together(partials)", _durable("a model over another")),
    SafetyLine("core/atomic_files.py", "sync(folder)", _durable("a model over another")),
    SafetyLine(
        "core/atomic_files.py", "sync_together([folder, folder.parent])", _durable("a model over another")
    ),
    SafetyLine("core/atomic_files.py", "sync(path.parent)", _durable("convert"), "put_directory"),
    SafetyLine("core/atomic_files.py", "sync(path.parent)", _durable("train"), "make_directory"),
    SafetyLine(
        "core/atomic_files.py",
        "sync(path.parent)",
        _test("durability", "a_directory_that_comes_back_comes_back_for_good"),
        "restore_directory",
    ),
    SafetyLine("core/external_partition.py", "os.fsync(self._file.fileno())", _durable("columns")),
    SafetyLine("core/external_partition.py", "os.fsync(file.fileno())", _durable("columns")),
    SafetyLine("dataset/direct_writer.py", "os.fsync(self._descriptor)", _durable("convert")),
    SafetyLine("dataset/table_writer.py", "sync(path / folder)", _durable("convert")),
    SafetyLine("dataset/writer.py", "sync(path)", _durable("convert a table")),
    SafetyLine(
        "training/checkpoint.py",
        "files = [*files, *([self._early_log, self.path] if self._early_lines else [self.log_path])]",
        _durable("train"),
    ),
    SafetyLine("training/checkpoint.py", "sync(self.path)", _durable("tune")),
    SafetyLine(
        "training/loop.py",
        "self._write_state(self.slots.unsynced())",
        _durable("train streamed"),
        instead="self._write_state()",
    ),
    SafetyLine(
        "stream/slot_store.py", "self._unsynced.add(int(self._shard[chunk]))", _durable("train streamed")
    ),
    SafetyLine(
        "stream/slot_store.py",
        "return [*map(self._path, chunks), self.folder]",
        _durable("train"),
        instead="return [*map(self._path, chunks)]",
    ),
    SafetyLine("cluster/loop.py", "sync(self._folder)", _durable("train in rounds")),
    SafetyLine("cluster/loop.py", "store.sync()", _durable("train in rounds from another")),
    SafetyLine("cluster/partition.py", "self._writer.sync()", _durable("train in rounds")),
    SafetyLine("conversion/staging.py", "os.fsync(lock)", _durable("convert")),
    SafetyLine("conversion/staging.py", "sync(work)", _durable("convert"), "_locked"),
)
"""Contents and names are durable before what promises them has its name."""

_ORDER = (
    SafetyLine(
        "core/atomic_files.py",
        "partial = _partial(path)",
        _test("metadata", "a_file_is_replaced_whole_or_stays_as_it_was"),
        "replacing",
        instead="partial = path",
    ),
    SafetyLine("core/atomic_files.py", "last.unlink(missing_ok=True)", _durable("a model over another")),
    SafetyLine(
        "core/atomic_files.py",
        "os.rename(path, replaced)",
        _test("metadata", "a_directory_is_replaced_or_restored"),
        "put_directory",
    ),
    SafetyLine(
        "core/atomic_files.py",
        "if replaced.exists() and not path.exists():",
        _test("convert", "a_dataset_that_was_being_replaced_comes_back"),
    ),
    SafetyLine(
        "core/external_partition.py",
        'partial = self._path.with_name(self._path.name + ".partial")',
        _durable("columns"),
        instead="partial = index_path(self._path)",
    ),
    SafetyLine(
        "stream/slot_store.py",
        "self.current[chunk] = 1 if self._durable[chunk] == 0 else 0",
        _test("durability", "the_slot_of_the_last_checkpoint_is_never_overwritten"),
    ),
    SafetyLine(
        "stream/slot_store.py",
        "self._durable = self.current.copy()",
        _test("durability", "the_slot_of_the_last_checkpoint_is_never_overwritten"),
        "SlotStore.mark_durable",
    ),
    SafetyLine(
        "stream/slot_store.py",
        "self._durable = current.copy()",
        _test("durability", "the_slot_of_the_last_checkpoint_is_never_overwritten"),
    ),
    SafetyLine(
        "training/loop.py",
        "self.slots.mark_durable()",
        _test("resume", "a_disk_that_fills_up_leaves_the_last_checkpoint_usable[12-False]"),
    ),
    SafetyLine(
        "training/checkpoint.py",
        "file.truncate(self._log_bytes)",
        _test("resume", "the_log_is_cut_back_to_the_checkpoint"),
    ),
    SafetyLine(
        "core/atomic_files.py",
        "elif not exchange(new, path):",
        _test("metadata", "two_directories_change_places_in_one_step"),
        instead="else:",
    ),
)
"""What is complete stays until what replaces it is."""

_CHECKS = (
    SafetyLine(
        "stream/slot_store.py",
        "return header if n_bytes == size and header[:8] == expected else None",
        _test("durability", "a_flipped_bit_in_a_slot_is_noticed"),
        instead="return header",
    ),
    SafetyLine(
        "stream/slot_store.py",
        "if not self.identity.accepts(tag):  # the path is made only for a refusal",
        _test("identity", "files_of_another_run_of_the_same_shape_are_refused_by_name[dual-resident]"),
    ),
    SafetyLine(
        "training/checkpoint.py",
        "identity.check(found, path)",
        _test("identity", "files_of_another_run_of_the_same_shape_are_refused_by_name[state.npz-resident]"),
    ),
    SafetyLine(
        "training/checkpoint.py",
        "self.identity.check(log_identity(self.log_path), self.log_path)",
        _test("identity", "files_of_another_run_of_the_same_shape_are_refused_by_name[log.jsonl-resident]"),
    ),
    SafetyLine(
        "training/checkpoint.py",
        "if not stored or size > path.stat().st_size:",
        _test(
            "identity", "a_state_of_another_size_than_the_runs_is_refused_unread[inflating-\\\\(compressed]"
        ),
    ),
    SafetyLine(
        "training/checkpoint.py",
        "if room is not None and size > room:",
        _test("identity", "a_state_of_another_size_than_the_runs_is_refused_unread[too_large-.* at most]"),
    ),
    SafetyLine(
        "training/checkpoint.py",
        "if self.log_path.exists() and self.log_path.stat().st_size:",
        _test("resume", "truncated_or_missing_files_are_refused_by_name[gone-state.npz]"),
    ),
    SafetyLine(
        "stream/slot_store.py",
        "if current.shape != self.current.shape:",
        _test("resume", "pages_of_a_run_that_has_none_are_refused"),
    ),
    SafetyLine(
        "core/metadata.py",
        "if kind.seal_key and raw.get(kind.seal_key) != kind.seal(raw):",
        _test("resume", "a_changed_configuration_is_refused_by_name"),
        instead="if False:",
    ),
    SafetyLine(
        "core/metadata.py",
        'if raw.get("format_version") != kind.version:',
        _test("metadata", "another_version_is_named"),
    ),
    SafetyLine(
        "runs/config.py",
        "if dataset.fingerprint != config.fingerprint:",
        _test("resume", "a_changed_dataset_is_refused_by_name"),
    ),
    SafetyLine(
        "runs/config.py",
        "if config.columns is not None and dataset.open_columns().fingerprint != config.columns:",
        _test("primal", "a_layout_made_anew_is_refused"),
    ),
    SafetyLine(
        "runs/config.py",
        "if identify(config.validation) != config.validation_identity:",
        _test("validation", "a_run_goes_on_with_its_own_validation_set_alone"),
    ),
    SafetyLine(
        "runs/previous_run.py",
        "if config.fingerprint != new.dataset.fingerprint:",
        _test("lanes", "a_warm_start_refuses_what_it_cannot_continue"),
    ),
    SafetyLine(
        "cluster/partition.py",
        "if dataset.fingerprint != spec.fingerprint:",
        _test("rounds", "a_worker_refuses_another_dataset_than_that_of_the_run"),
    ),
    SafetyLine(
        "dataset/column_layout.py",
        'if manifest["dataset"] != dataset.fingerprint:',
        _test("columns", "layout_of_another_dataset_is_refused"),
    ),
    SafetyLine(
        "dataset/parquet.py",
        'if "sha256:" + hashlib.sha256(content).hexdigest() != checksum:',
        _test("dataset", "a_flipped_byte_is_named_by_verify_and_never_trained_on[chunks.parquet]"),
    ),
    SafetyLine(
        "dataset/parquet.py",
        "if zlib.crc32(data) != crc:",
        _test("dataset", "a_data_file_replaced_by_another_of_its_size_is_never_trained_on[entries]"),
    ),
    SafetyLine(
        "dataset/parquet.py",
        "verify = part.begins_before(columns)",
        _test("dataset", "damage_is_noticed_whichever_columns_are_read[columns0]"),
        instead="verify = False",
    ),
    SafetyLine(
        "dataset/parquet.py",
        "self._verifying = self._open(metadata=self._reader.metadata, page_checksum_verification=True)",
        _test("dataset", "damage_is_noticed_whichever_columns_are_read[columns0]"),
        instead="self._verifying = self._reader",
    ),
    SafetyLine(
        "dataset/chunked_table.py",
        "elif found != n_bytes:",
        _test("dataset", "truncated_or_missing_files_are_named_by_verify_and_train[features.parquet]"),
        instead="if False:",
    ),
    SafetyLine(
        "dataset/chunked_table.py",
        "elif found == NO_FILE:  # it would be read for ever",
        _test("dataset", "what_is_no_file_is_named_and_not_read[pipe-features.parquet]"),
        instead="if False:",
    ),
    SafetyLine(
        "dataset/chunked_table.py",
        'if table["part"].max(initial=-1) >= len(manifest["parts"]):',
        _test("dataset", "a_chunk_of_a_part_that_there_is_not_is_refused"),
    ),
    SafetyLine(
        "dataset/verify.py",
        "return file_checksum(path) != checksum",
        _test("dataset", "a_flipped_byte_is_named_by_verify_and_never_trained_on[features.parquet]"),
        instead="return False",
    ),
    SafetyLine(
        "models/model_file.py",
        "if file_checksum(path) != checksum:",
        _test("model", "a_flipped_bit_in_the_weights_is_refused_by_name"),
    ),
    SafetyLine(
        "dataset/range_cache.py",
        'if len(found) == n_bytes and zlib.crc32(found).to_bytes(_CRC_BYTES, "little") == crc:',
        _test("remote", "a_damaged_range_of_a_cache_is_asked_for_again"),
        instead="if len(found) == n_bytes:",
    ),
    SafetyLine(
        "stream/arenas.py",
        'if index.size and index.view(f"u{index.itemsize}").max() >= n:',
        _test("stream", "a_chunk_that_does_not_fit_the_dataset_is_refused"),
    ),
    SafetyLine(
        "kernels/rows.py",
        "if left and label.size:",
        _test("stream", "a_chunk_that_does_not_fit_the_dataset_is_refused"),
    ),
    SafetyLine(
        "kernels/rows.py",
        "if high < 0 or classes[low] != label[i]:",
        _test("stream", "a_chunk_that_does_not_fit_the_dataset_is_refused"),
    ),
    SafetyLine(
        "training/stopping.py",
        "if np.isfinite(state.totals[:, [GAP, LOSS, DUAL]]).all() and not np.isinf(certificates).any():",
        _test("solvers", "values_whose_squares_are_no_numbers_are_refused_or_not_certified"),
        instead="if True:",
    ),
)
"""What is read is what was written, by this run, of this dataset; what is said of it is true."""

_REFUSALS = (
    SafetyLine(
        "core/metadata.py",
        r'FileName = Annotated[str, msgspec.Meta(pattern=r"^([\w-]+/)?[\w-][\w.-]*\Z")]',
        _test("dataset", "names_of_files_that_leave_the_directory_are_refused"),
        instead="FileName = str",
    ),
    SafetyLine(
        "core/metadata.py",
        "if isinstance(path, Path) and path.exists() and not path.is_file():",
        _test("dataset", "a_manifest_that_is_no_file_is_refused[rows]"),
    ),
    SafetyLine(
        "core/atomic_files.py",
        "if partial.is_symlink():",
        _test("files_of_others", "nothing_is_written_through_a_symbolic_link[predict]"),
    ),
    SafetyLine(
        "training/checkpoint.py",
        "_refuse_links(path)",
        _test("identity", "nothing_is_written_through_a_symbolic_link_in_a_run[False-model]"),
        "open_run",
    ),
    SafetyLine(
        "training/checkpoint.py",
        "if entry.is_dir() and not entry.is_symlink():",
        _test("identity", "nothing_is_written_through_a_symbolic_link_in_a_run[True-dual]"),
        instead="if entry.is_dir():",
    ),
    SafetyLine(
        "training/checkpoint.py",
        'self._lock = take_lock(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) if locked else None',
        _test("durability", "files_that_are_opened_to_be_written_are_no_links"),
        instead='self._lock = take_lock(path / "lock", os.O_RDWR | os.O_CREAT) if locked else None',
    ),
    SafetyLine(
        "stream/slot_store.py",
        "self._files[shard] = os.open(self._path(chunk), flags | os.O_NOFOLLOW, 0o644)",
        _test("durability", "files_that_are_opened_to_be_written_are_no_links"),
        instead="self._files[shard] = os.open(self._path(chunk), flags, 0o644)",
    ),
    SafetyLine(
        "conversion/staging.py",
        'lock = take_lock(work / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)',
        _test("convert", "work_goes_to_no_directory_of_others_and_through_no_link"),
        instead='lock = take_lock(work / "lock", os.O_RDWR | os.O_CREAT)',
    ),
    SafetyLine(
        "conversion/staging.py",
        "if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():",
        _test("convert", "work_goes_to_no_directory_of_others_and_through_no_link"),
    ),
    SafetyLine(
        "conversion/staging.py",
        'if "lock" not in names or not stat.S_ISREG(os.lstat(lock).st_mode):',
        _test("convert", "work_goes_to_no_directory_of_others_and_through_no_link"),
    ),
    SafetyLine(
        "core/locks.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        _test("resume", "a_run_in_use_by_another_process_is_refused"),
    ),
    SafetyLine(
        "core/locks.py",
        "if not _copies_keep:",
        _test("durability", "a_forked_child_holds_no_lock_of_its_parent"),
    ),
    SafetyLine(
        "core/locks.py",
        "_copies_keep = True",
        _test(
            "parallel", "nobody_begins_where_workers_of_a_killed_process_still_write[convert-write-copied]"
        ),
    ),
    SafetyLine(
        "core/locks.py",
        "return _hold, tuple(reduction.DupFd(descriptor) for descriptor in _held)",
        _test(
            "parallel", "nobody_begins_where_workers_of_a_killed_process_still_write[columns-sort-spawned]"
        ),
        instead="return _hold, ()",
    ),
    SafetyLine(
        "training/checkpoint.py",
        "if locked and self._lock is None:",
        _test("resume", "a_run_in_use_by_another_process_is_refused"),
    ),
    SafetyLine(
        "conversion/staging.py",
        "if lock is None:",
        _test("convert", "a_second_conversion_to_the_same_place_is_refused"),
    ),
    SafetyLine(
        "conversion/transpose.py",
        "if lock is None:",
        _test("columns", "kill_leaves_no_half_layout"),
        "_locked",
    ),
    SafetyLine(
        "training/checkpoint.py",
        'if leftovers and not (path / "config.json").exists():',
        _test("resume", "a_directory_with_something_else_in_it_is_never_emptied"),
    ),
    SafetyLine(
        "runs/config.py",
        'raise UsageError(f"{path} holds {source}, which the run reads; name another directory")',
        _test("files_of_others", "a_run_does_not_empty_what_it_reads"),
    ),
    SafetyLine(
        "runs/config.py",
        'if force or not (path / "config.json").exists():',
        _test("resume", "training_into_an_unfinished_run_points_to_resume"),
        instead="if True:",
    ),
    SafetyLine(
        "conversion/convert.py",
        "if path is not None and dest.resolve() in (real := Path(path).resolve(), *real.parents):",
        _test("convert", "a_source_is_never_replaced_and_advice_agrees[True]"),
    ),
    SafetyLine(
        "conversion/convert.py",
        'if (not dest.is_dir() or any(dest.iterdir())) and not (dest / "manifest.json").exists():',
        _test("convert", "force_does_not_replace_what_is_not_a_dataset"),
    ),
    SafetyLine(
        "core/atomic_files.py",
        "if any(os.path.exists(source) and os.path.exists(path) and path.samefile(source) for source in inputs):",
        _test("files_of_others", "predictions_do_not_replace_the_text_they_are_of"),
    ),
    SafetyLine(
        "core/atomic_files.py",
        "if not is_kind(path):",
        _test("files_of_others", "a_file_of_another_kind_is_not_replaced[predict-letter- --force]"),
    ),
    SafetyLine(
        "core/atomic_files.py",
        "if not force:",
        _test("files_of_others", "a_file_of_the_same_kind_is_replaced_by_force_only[predict]"),
    ),
    SafetyLine(
        "core/memory_budget.py",
        "if total > budget:",
        _test("memory", "what_is_left_of_a_budget_or_the_sum_that_exceeds_it"),
    ),
    SafetyLine(
        "core/process_pool.py",
        "if total > budget:",
        _test("parallel", "memory_is_shared_out_and_refused_with_the_arithmetic"),
    ),
    SafetyLine(
        "stream/memory_plan.py",
        'left = require(budget, {**overhead, "two windows of one chunk": smallest}, advice, refusal)',
        _test("stream", "a_budget_that_cannot_do_is_refused_with_the_arithmetic"),
        instead="left = budget",
    ),
    SafetyLine(
        "conversion/plan.py",
        "left = require(options.memory_bytes, needs, advice) + _LEAST_BYTES",
        _test("convert", "options_that_make_no_sense_are_refused"),
        instead="left = options.memory_bytes",
    ),
    SafetyLine(
        "training/stopping.py",
        'least_primal = np.abs(lanes["primal"]) - lanes["primal_rounding"]',
        _test("certificates", "a_gap_is_proven_against_the_least_that_the_primal_may_be"),
        instead='least_primal = np.abs(lanes["primal"])',
    ),
    SafetyLine(
        "dataset/verify.py",
        "require(budget, needs)",
        _test("dataset", "verify_refuses_a_budget_that_is_too_small"),
    ),
)
"""Nothing of others is written to, nobody else writes here, and nothing exceeds the budget."""

LINES = (*_SYNCS, *_ORDER, *_CHECKS, *_REFUSALS)
