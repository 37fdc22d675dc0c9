import pytest

from estimator_det.errors import RunError
from model_fn.checks import graphs, memory
from tests.inputs import examples
from tests.model_fn.checks.small import small_config


@pytest.fixture(scope="module")
def small(small_network):
    return graphs.examine(small_config())


def test_memory_of_parts(small):
    assert small.problems == [] and small.warm_start is None
    found = small.memory
    images = 2 * 64 * 64 * 3 * 4
    assert images < found.batch < 1.1 * images
    assert found.parameters > found.gradients > 0
    # Adam keeps two slots of each trainable variable.
    assert found.slots == pytest.approx(2 * found.gradients, rel=0.01)
    assert small.num_variables > 20 and small.num_operations > 1000


def test_activations_grow_with_the_batch_and_parameters_do_not(small):
    double = graphs.examine(
        small_config("train_config.batch_size=4", "eval_input_reader=[]")
    ).memory
    assert double.parameters == small.memory.parameters
    # Not all grow: the largest gradient is of a kernel.
    assert 1.5 < double.activations / small.memory.activations < 2.01
    assert double.training > small.memory.training > memory.BASE_BYTES
    assert small.memory.graph == int(
        memory.BASE_BYTES + memory.OPERATION_BYTES * small.num_operations
    )


def test_too_little_memory_is_a_warning(monkeypatch):
    assert not list(memory.check_memory(10**6, 4))
    monkeypatch.setattr(memory, "available_memory", lambda: 8 * 10**9)
    (problem,) = memory.check_memory(9 * 10**9, 4)
    assert "about 9.0 GB at batch 4, this machine has 8.0" in problem.message
    assert not list(memory.check_memory(8 * 10**9, 4))


def test_input_memory(small, tmp_path):
    path = tmp_path / "some.record"
    examples.write(path, [bytes(1000)] * 10)
    records = f'train_input_reader.tf_record_input_reader.input_path=["{path}"]'
    few = small_config(records, "train_input_reader.shuffle_buffer_size=4")
    needed = memory.input_memory(few, small.memory, cores=2)
    assert needed.shuffled == 4000
    many = small_config(records, "train_input_reader.shuffle_buffer_size=4000")
    assert memory.input_memory(many, small.memory, cores=2).shuffled == path.stat().st_size
    assert needed.total > needed.prefetched >= 2 * small.memory.batch
    path.write_bytes(b"")
    with pytest.raises(RunError, match="no records"):
        memory.input_memory(few, small.memory, cores=2)
