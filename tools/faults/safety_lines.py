"""Lines of the package that keep a promise of `docs/runs.md`, each with a test that notices when it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TABLE = r"""
# Contents and names are durable before what promises them has its name.
core/files.py
    os.fsync(descriptor) ~ durable[train]
    sync(*new, *before, *partials) ~ durable[predict]
    sync(last.parent)  # the others have theirs before it has its own ~ durable[a model over another]
    sync(last.parent)  # all have them for good ~ durable[predict]
    sync(path.parent) @ put_directory ~ durable[convert]
    return [*changed, path.parent] ~ durable[train]
        > return changed
dataset/writer.py
    sync(path) ~ durable[convert]
    sync(folder / name) ~ durable[convert]
training/checkpoint.py
    with replacing(*paths, before=[*files, *self._unsynced]) as (partial, *early_log): ~ durable[train streamed]
        > with replacing(*paths, before=files) as (partial, *early_log):
    self._unsynced.add(self.path)  # for the names of the slots' folder and of the early log ~ durable[train]
    sync(*make_directory(self.path / name)) ~ durable[tune]
        > make_directory(self.path / name)
training/loop.py
    self.directory.write_state(arrays, self.slots.unsynced()) ~ durable[train streamed]
        > self.directory.write_state(arrays)
stream/slot_store.py
    self._unsynced.add(int(self._shard[chunk])) ~ durable[train streamed]
    return [*map(self._path, chunks), *[self.folder] * (NO_SLOT in self._durable)] ~ durable[train]
        > return [*map(self._path, chunks)]
cluster/loop.py
    self.slots.roll_back() ~ rounds a_round_that_is_lost_leaves_no_trace_and_one_that_always_is_ends_the_run[collect-3]
core/staging.py
    os.fsync(lock) ~ durable[convert]
    sync(work) @ _locked ~ durable[convert]
# What is complete stays until what replaces it is.
core/files.py
    partials = [path.with_name(path.name + ".partial") for path in paths]
        ~ metadata a_file_is_replaced_whole_or_stays_as_it_was
        > partials = [*paths]
    last.unlink() ~ durable[a model over another]
    exchange(new, path) ~ metadata two_directories_change_places_in_one_step
stream/slot_store.py
    self.current[chunk] = 1 if self._durable[chunk] == 0 else 0
        ~ durability the_slot_of_the_last_checkpoint_is_never_overwritten
    self._durable = self.current.copy() @ SlotStore.mark_durable
        ~ durability the_slot_of_the_last_checkpoint_is_never_overwritten
    self._durable = current.copy() ~ durability the_slot_of_the_last_checkpoint_is_never_overwritten
training/loop.py
    self.slots.mark_durable() ~ resume a_disk_that_fills_up_leaves_the_last_checkpoint_usable[12-False]
training/checkpoint.py
    file.truncate(self._log_bytes) ~ resume the_log_is_cut_back_to_the_checkpoint
# What is read is what was written, by this run, of this dataset; what is said of it is true.
stream/slot_store.py
    return bytes(header[8:]) if n_bytes == size and header[:8] == expected else None
        ~ durability a_flipped_bit_in_a_slot_is_noticed
        > return bytes(header[8:])
    if self.identity is not None and found not in (None, self.identity.tag):
        ~ identity files_of_another_run_of_the_same_shape_are_refused_by_name[dual-resident]
    if current.shape != self.current.shape: ~ resume slots_of_a_run_that_has_none_are_refused
training/checkpoint.py
    identity.check(found, path)
        ~ identity files_of_another_run_of_the_same_shape_are_refused_by_name[state.npz-resident]
    check_log(self.log_path, *log)
        ~ identity files_of_another_run_of_the_same_shape_are_refused_by_name[log.jsonl-resident]
    if not stored or size > path.stat().st_size:
        ~ identity a_state_of_another_size_than_the_runs_is_refused_unread[inflates]
    if room is not None and size > room:
        ~ identity a_state_of_another_size_than_the_runs_is_refused_unread[too large]
    if log.exists() and log.stat().st_size:
        ~ resume truncated_or_missing_files_are_refused_by_name[gone-state.npz]
core/files.py
    elif raw.get(SEAL) != content_digest(raw):
        ~ resume a_changed_configuration_is_refused_by_name
    elif raw.get("format_version") != kind.version: ~ metadata another_version_is_named
runs/config.py
    if config.columns is not None and dataset.open_columns().fingerprint != config.columns:
        ~ primal a_layout_made_anew_is_refused
dataset/column_layout.py
    if manifest["dataset"] != dataset.fingerprint: ~ columns layout_of_another_dataset_is_refused
dataset/arrow_columns.py
    if "sha256:" + hashlib.sha256(content).hexdigest() != checksum:
        ~ dataset a_flipped_byte_is_named_by_verify_and_never_trained_on[chunks.parquet]
dataset/parts.py
    options = {"pre_buffer": False, "page_checksum_verification": verify}
        ~ dataset damage_is_noticed_whichever_columns_are_read[columns0]
        > options = {"pre_buffer": False, "page_checksum_verification": False}
dataset/chunked_table.py
    if crc32(data[extent_of(part.footer, group, covered)[0] - offset :]) != crcs[chunk]:
        ~ dataset a_data_file_replaced_by_another_of_its_size_is_never_trained_on[entries]
    verify = first != covered ~ dataset damage_is_noticed_whichever_columns_are_read[columns0]
        > verify = False
    elif found != n_bytes:
        ~ dataset truncated_or_missing_files_are_named_by_verify_and_train[features.parquet]
        > if False:
    elif found == NO_FILE:  # it would be read for ever
        ~ dataset what_is_no_file_is_named_and_not_read[pipe-features.parquet]
        > if False:
    if table["part"].max(initial=-1) >= len(manifest["parts"]):
        ~ dataset a_chunk_of_a_part_that_there_is_not_is_refused
dataset/dataset.py
    if fingerprint not in (None, manifest["fingerprint"]): ~ resume a_changed_dataset_is_refused_by_name
dataset/verify.py
    if content_text(part.sums[0]) != record["content"]:
        ~ dataset another_content_than_the_manifest_records_is_found[entries]
    if record and content_of(columns.names, read_tables(dataset.file(name))) != record["content"]:
        ~ dataset another_content_than_the_manifest_records_is_found[features]
    if path not in found and file_checksum(path) != checksum:
        ~ dataset a_flipped_byte_is_named_by_verify_and_never_trained_on[features.parquet]
        > if False:
models/model_file.py
    if file_checksum(path) != checksum: ~ model a_flipped_bit_in_the_weights_is_refused_by_name
stream/arenas.py
    if index.size and index.view(f"u{index.itemsize}").max() >= n:
        ~ stream a_chunk_that_does_not_fit_the_dataset_is_refused
kernels/rows.py
    if left and label.size: ~ stream a_chunk_that_does_not_fit_the_dataset_is_refused
    if high < 0 or classes[low] != label[i]: ~ stream a_chunk_that_does_not_fit_the_dataset_is_refused
training/stopping.py
    if np.isfinite(sums).all() and not np.isinf(certificates).any():
        ~ solvers values_whose_squares_are_no_numbers_are_refused_or_not_certified
        > if True:
# Nothing of others is written to, nobody else writes here, and nothing exceeds the budget.
core/files.py
    FileName = Annotated[str, msgspec.Meta(pattern=r"^([\w-]+/)?[\w-][\w.-]*\Z")]
        ~ dataset names_of_files_that_leave_the_directory_are_refused
        > FileName = str
    if isinstance(path, Path) and path.exists() and not path.is_file():
        ~ dataset a_manifest_that_is_no_file_is_refused[rows]
core/files.py
    if partial.is_symlink(): ~ files_of_others nothing_is_written_through_a_symbolic_link[predict]
    elif any(os.path.exists(source) and os.path.exists(path) and path.samefile(source) for source in inputs):
        ~ files_of_others predictions_do_not_replace_the_text_they_are_of
    elif not is_kind(path): ~ files_of_others a_file_of_another_kind_is_not_replaced[export a model-letter- --force]
    elif not force: ~ files_of_others a_file_of_the_same_kind_is_replaced_by_force_only[predict]
training/checkpoint.py
    _refuse_links(path) @ open_run ~ identity nothing_is_written_through_a_symbolic_link_in_a_run[False-model]
    if entry.is_dir() and not entry.is_symlink():
        ~ identity nothing_is_written_through_a_symbolic_link_in_a_run[True-dual]
        > if entry.is_dir():
    self._lock = take_lock(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) if locked else None
        ~ durability files_that_are_opened_to_be_written_are_no_links
        > self._lock = take_lock(path / "lock", os.O_RDWR | os.O_CREAT) if locked else None
    if locked and self._lock is None: ~ resume a_run_in_use_by_another_process_is_refused
    if leftovers and not (path / "config.json").exists():
        ~ resume a_directory_with_something_else_in_it_is_never_emptied
stream/slot_store.py
    descriptor = os.open(name, flags | os.O_NOFOLLOW, 0o644)
        ~ durability files_that_are_opened_to_be_written_are_no_links
        > descriptor = os.open(name, flags, 0o644)
core/staging.py
    lock = take_lock(work / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        ~ convert work_goes_to_no_directory_of_others_and_through_no_link
        > lock = take_lock(work / "lock", os.O_RDWR | os.O_CREAT)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        ~ convert work_goes_to_no_directory_of_others_and_through_no_link
    if "lock" not in names or not stat.S_ISREG(os.lstat(lock).st_mode):
        ~ convert work_goes_to_no_directory_of_others_and_through_no_link
    if lock is None: ~ convert a_second_conversion_to_the_same_place_is_refused
core/files.py
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) ~ resume a_run_in_use_by_another_process_is_refused
    if not _copies_keep: ~ durability a_forked_child_holds_no_lock_of_its_parent
    _copies_keep = True
        ~ parallel nobody_begins_where_workers_of_a_killed_process_still_write[copied]
    return _hold, tuple(reduction.DupFd(descriptor) for descriptor in _held)
        ~ parallel nobody_begins_where_workers_of_a_killed_process_still_write[spawned]
        > return _hold, ()
runs/config.py
    raise UsageError(f"{path} holds {source}, which the run reads; name another directory")
        ~ files_of_others a_run_does_not_empty_what_it_reads
    if not force and is_begun(path, config): ~ resume training_into_an_unfinished_run_points_to_resume
        > if False:
core/staging.py
    if dest.resolve() in (real := Path(path).resolve(), *real.parents):
        ~ outside_conversion a_dataset_is_replaced_by_force_alone_and_not_where_its_source_is_in_it
    if (not dest.is_dir() or any(dest.iterdir())) and not (dest / "manifest.json").exists():
        ~ outside_conversion what_is_no_dataset_is_never_replaced_nor_written_through[another folder]
core/memory_budget.py
    if total > budget: ~ memory what_is_left_of_a_budget_or_the_sum_that_exceeds_it
stream/memory_plan.py
    left = require(budget, needs, memory.advice, refusal, RUNNING_BYTES)
        ~ stream a_budget_that_cannot_do_is_refused_with_the_arithmetic
        > left = budget
conversion/convert.py
    left = memory_per_worker(memory, options.workers, needs, own, _HELD_ADVICE if held_bytes else "")
        ~ convert options_that_make_no_sense_are_refused
        > left = memory
dataset/verify.py
    memory_per_worker(budget, pool.n_workers, needs)
        ~ dataset verify_refuses_a_budget_that_is_too_small
"""
"""By module: a line of it, ``@`` and the function, class or method that it is in where it is there more than once, ``~`` and
the test, below ``tests`` (``durable`` is the test of power cuts, by what was written), and ``>`` with what stands in the
line's place in a mutant, if that is neither a condition that is never true nor nothing done."""

_DURABLE = "durability a_power_cut_takes_nothing_that_has_its_name"


@dataclass(frozen=True)
class SafetyLine:
    """A line of a module, without its indentation, and what stands in its place in a mutant.

    Parameters
    ----------
    file : str
        Module, below the package.
    text : str
        The line; it is there exactly once, in the whole file or in the function, class or method named by `within`.
    guard : str
        Test, below ``tests``, that fails without the line.
    instead : str
        By default a condition is never true, and any other line does nothing.
    """

    file: str
    text: str
    guard: str = ""
    within: str = ""
    instead: str = ""

    def __post_init__(self) -> None:
        if not self.instead:
            word = self.text.partition(" ")[0]
            object.__setattr__(self, "instead", f"{word} False:" if word in ("if", "elif") else "pass")

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def _read(table: str) -> Iterator[SafetyLine]:
    file = ""
    for row in table.replace("\n        ~", " ~").replace("\n        >", " >>").strip().splitlines():
        if not row.startswith("    "):
            file = file if row.startswith("#") else row
            continue
        code, _, rest = row.strip().partition(" ~ ")
        guard, _, instead = rest.partition(" >> ")
        text, _, within = code.partition(" @ ")
        module, _, test = guard.replace("durable", _DURABLE, 1).partition(" ")
        yield SafetyLine(file, text, f"test_{module}.py::test_{test}", within, instead)


LINES = tuple(_read(TABLE))
