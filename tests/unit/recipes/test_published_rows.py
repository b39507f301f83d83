"""Recipes of published settings hold what the publications print."""

from math import pi

import pytest

from linrnn import mixers, recipes, tasks
from linrnn.recipes._studies import long_range, lru, s4d, s5
from linrnn.train.data import steps_per_epoch
from linrnn.train.model import build_task


def steps(config, train_size):
    return config.train.epochs * steps_per_epoch(train_size, config.train.batch_size)


@pytest.mark.parametrize("row", lru.LRU_TABLE.values(), ids=lambda row: row.task)
def test_epochs_of_the_lru_are_the_published_iterations(row):
    epochs = row.iterations * row.batch_size / row.train_size
    assert round(epochs) == pytest.approx(epochs, rel=0.02)


def test_lru_on_listops_is_table_9():
    recipe = recipes.load("listops", "paper")
    config = recipe.config
    assert (config.mixer, config.model.n_layers, config.model.d_model) == ("lru", 6, 128)
    assert config.mixer_options == {
        "d_state": 256,
        "r_min": 0.0,
        "r_max": 0.99,
        "max_phase": 2 * pi,
    }
    assert (config.train.batch_size, config.model.dropout) == (32, 0.0)
    assert (config.optim.recurrent_lr_factor, config.optim.weight_decay) == (0.5, 0.05)
    assert (config.optim.warmup_fraction, config.optim.min_lr) == (0.1, 1e-7)
    assert not config.model.bidirectional
    assert steps(config, 96_000) == pytest.approx(80_000, rel=0.02)
    assert recipe.seconds == pytest.approx(80_000 / 2.1)


def test_lru_on_colour_images_has_the_learning_rate_the_paper_prints():
    config = recipes.load("scifar", "paper").config
    assert config.optim.lr == pytest.approx(0.004)
    assert config.optim.recurrent_lr_factor == 0.25
    assert (config.model.d_model, config.mixer_options["d_state"]) == (512, 384)
    assert config.mixer_options["r_min"] == 0.9
    assert config.model.dropout == 0.1
    assert not config.task_options.grey
    assert steps(config, 45_000) == 180_000


def test_lru_rows_that_are_read_in_both_directions():
    both = {task for task, row in lru.LRU_TABLE.items() if row.bidirectional}
    assert both == {"pathfinder", "path_x"}
    row = lru.LRU_TABLE["path_x"]
    assert (row.ring, row.max_phase) == ((0.999, 0.9999), pi / 10)


def test_s4d_on_listops_is_normalised_after_the_mixer():
    config = recipes.load("listops_s4d", "paper").config
    assert not config.model.prenorm
    assert (config.model.d_model, config.mixer_options["d_state"]) == (256, 4)
    assert config.optim.lr == 0.01
    assert config.optim.lr * config.optim.recurrent_lr_factor == pytest.approx(0.001)
    assert config.model.bidirectional
    assert config.mixer_options["n_ssm"] == 1
    assert "n_ssm" not in recipes.load("pathfinder_s4d", "paper").config.mixer_options
    assert steps(config, 96_000) == 120_000


def test_s5_on_grey_images_keeps_its_eigenvalues_stable():
    config = recipes.load("scifar_grey_s5", "paper").config
    assert config.task_options.grey
    options = {"d_state": 384, "blocks": 3, "clip_eigs": True, "C_init": "lecun"}
    assert config.mixer_options == options
    assert config.optim.lr == 0.0045
    assert config.optim.lr * config.optim.recurrent_lr_factor == pytest.approx(0.001)
    assert config.optim.weight_decay == 0.07
    assert config.train.epochs * config.optim.warmup_fraction == pytest.approx(1)


def test_s5_on_reviews_has_no_warm_up():
    assert recipes.load("imdb_s5", "paper").config.optim.warmup_fraction == 0


@pytest.mark.parametrize(("mixer", "accuracy"), [("mingru", 0.995), ("minlstm", 0.960)])
def test_selective_copy_has_400000_batches_of_64(mixer, accuracy):
    name = "selective_copy" if mixer == "mingru" else f"selective_copy_{mixer}"
    recipe = recipes.load(name, "paper")
    config = recipe.config
    assert recipe.expected == accuracy
    assert (config.mixer, config.model.n_layers, config.mixer_options) == (
        mixer,
        3,
        {"expansion": 6.0},
    )
    assert (config.task_options.length, config.task_options.n_tokens) == (4096, 16)
    assert (config.optim.lr, config.optim.schedule, config.optim.clip) == (1e-4, "constant", 1.0)
    assert steps(config, config.task_options.train_size) == 400_000


def test_mamba_on_induction_heads_has_25_epochs_of_8192_batches():
    config = recipes.load("induction_heads", "paper").config
    assert steps(config, config.task_options.train_size) == 25 * 8192
    assert (config.mixer, config.train.batch_size, config.optim.lr) == ("mamba", 8, 1e-3)
    assert (config.task_options.length, config.task_options.vocabulary) == (256, 16)
    assert config.optim.weight_decay == 0


STUDIES = {"lru": lru.LRU_TABLE, "s4": s4d.TABLE, "s4d": s4d.TABLE, "s5": s5.TABLE}
STUDIES |= long_range.TABLES


@pytest.mark.parametrize("mixer", STUDIES)
def test_every_row_of_a_known_task_has_a_recipe(mixer):
    made = {
        recipes.load(name, "paper").config.task
        for name in recipes.names()
        if "paper" in recipes.scales(name) and recipes.load(name, "paper").config.mixer == mixer
    }
    made -= {"sound", "pendulum"}  # tasks whose published settings are not of a study
    assert made == set(STUDIES[mixer]) & set(tasks.names())


@pytest.mark.parametrize(
    ("name", "C_init"),
    [
        ("listops_s5", "lecun"),
        ("imdb_s5", "lecun"),
        ("retrieval_s5", "truncated"),
        ("scifar_grey_s5", "lecun"),
        ("pathfinder_s5", "truncated"),
        ("path_x_s5", "normal"),
        ("speech_commands", "lecun"),
    ],
)
def test_s5_draws_its_output_matrix_as_the_scripts_do(name, C_init):
    config = recipes.load(name, "paper").config
    assert mixers.build("s5", config.model.d_model, config.mixer_options).C_init == C_init


MEGA = long_range.TABLES["mega"]


@pytest.mark.parametrize("task", MEGA)
def test_epochs_of_mega_are_the_published_updates(task):
    sizes = {"listops": 96_000, "imdb": 22_500, "retrieval": 147_086, "scifar": 45_000}
    row = MEGA[task]
    epochs = long_range.STEPS[task] * row.batch_size / sizes.get(task, 160_000)
    assert row.epochs == pytest.approx(epochs, rel=0.01)


def test_mega_on_grey_images_has_the_laplace_read_and_a_feed_forward_part():
    config = recipes.load("scifar_grey_mega", "paper").config
    assert config.task_options.grey
    assert (config.model.n_layers, config.model.d_model, config.model.d_ffn) == (8, 160, 320)
    assert (config.model.block, config.model.norm, config.model.prenorm) == ("mlp", "batch", True)
    assert config.mixer_options["attention"] == "laplace"
    assert (config.mixer_options["d_key"], config.mixer_options["d_inner"]) == (96, 320)
    assert (config.optim.betas, config.optim.clip) == ((0.9, 0.98), 1.0)
    assert (config.optim.lr, config.optim.recurrent_lr_factor) == (0.01, 1.0)


def test_sgconv_on_listops_has_parts_of_one_tap_that_halve():
    config = recipes.load("listops_sgconv", "paper").config
    assert config.mixer_options == {"d_kernel": 1, "l_max": 2000, "decay": 0.5}
    assert (config.model.n_layers, config.model.d_model) == (8, 128)
    assert config.model.bidirectional
    assert not config.model.prenorm
    assert steps(config, 96_000) == 76_800  # of 80,000 in the schedule


def test_liquid_s4_on_path_x_starts_from_small_steps():
    config = recipes.load("path_x_liquid_s4", "paper").config
    assert (config.model.d_model, config.model.bidirectional) == (320, False)
    assert config.mixer_options["dt_min"] == 1e-4
    assert config.optim.lr * config.optim.recurrent_lr_factor == pytest.approx(0.0005)


def test_dss_on_path_x_differs_from_the_first_s4_as_its_command_says():
    config = recipes.load("path_x_dss", "paper").config
    assert (config.train.batch_size, config.optim.lr) == (16, 0.0005)
    options = config.mixer_options
    assert (options["dt_min"], options["dt_max"], options["kernel"]) == (1e-4, 0.01, "softmax")
    assert options["length"] == build_task(config).sequence_length


@pytest.mark.parametrize("mixer", long_range.TABLES)
def test_the_scales_of_the_memory_reach_over_a_task(mixer):
    for task in long_range.TABLES[mixer]:
        name = f"{task}{'_grey' * (task == 'scifar')}_{mixer}"
        config = recipes.load(name, "paper").config
        reach = config.mixer_options.get("l_max", config.mixer_options.get("length"))
        longest = build_task(config).sequence_length
        assert reach is None or reach >= longest
