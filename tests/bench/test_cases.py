"""Answers are compared before anything is timed: who passes, who gets a note, who is refused."""

from functools import partial

import pytest
import torch

from powerpool.bench import competitors, reference
from powerpool.bench.cases import BenchCase, Contender, DisagreementError, Effort, Inputs, check_answers, run_case
from powerpool.bench.reference import Answer

VALUE, GRADIENT = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0])


def contender(value, gradient=GRADIENT, origin="powerpool", approximate=False, name="one", calls=None) -> Contender:
    def step(watch):
        if calls is not None:
            calls.append(name)
        return Answer(value, gradient)

    return Contender(name, origin, "the answer", step, approximate)


def case_of(*contenders: Contender, reference: bool = True) -> BenchCase:
    references = {"the answer": lambda: Answer(VALUE.double(), GRADIENT.double())} if reference else {}
    return BenchCase("pools", "a case", {}, list(contenders), references)


def test_the_same_answer_passes():
    found = check_answers(case_of(contender(VALUE * (1 + 1e-6))))
    assert found["one"].value_error == pytest.approx(1e-6, rel=0.2)
    assert found["one"].gradient_error == 0
    assert found["one"].note == ""


@pytest.mark.parametrize("origin", ["powerpool", "competitor", "floor"])
@pytest.mark.parametrize("wrong", [VALUE + torch.tensor([0.0, 0.01]), VALUE * torch.nan], ids=["0.002", "nan"])
def test_a_wrong_value_is_refused_from_any_contender(origin, wrong, request):
    error = request.node.callspec.id.split("-")[0]
    with pytest.raises(DisagreementError, match=rf"a case: the value of 'one' .* by {error}"):
        check_answers(case_of(contender(wrong, origin=origin)))


def test_lost_digits_are_noted_for_a_competitor_and_refused_for_the_library():
    lost = VALUE + torch.tensor([0.0, 0.002])  # 4e-4 of the norm
    assert check_answers(case_of(contender(lost, origin="competitor")))["one"].note == "value: off by 0.0004"
    with pytest.raises(DisagreementError, match=r"value of 'one' .* 0.0004"):
        check_answers(case_of(contender(lost)))


@pytest.mark.parametrize(
    "gradient, note",
    [
        (GRADIENT + torch.tensor([1.0, 0.0]), "gradient: off by 0.2"),
        (torch.tensor([torch.nan, 5.0]), "gradient: not finite"),
        (None, "gradient: not finite"),
        (torch.zeros(3), "gradient: not finite"),
    ],
)
def test_a_wrong_gradient_is_noted_for_a_competitor_and_refused_for_the_library(gradient, note):
    found = check_answers(case_of(contender(VALUE, gradient, origin="competitor")))["one"]
    assert (found.note, found.value_error) == (note, 0)
    with pytest.raises(DisagreementError, match="gradient of 'one'"):
        check_answers(case_of(contender(VALUE, gradient)))


def test_a_declared_approximation_is_recorded():
    found = check_answers(case_of(contender(VALUE * 1.5, origin="competitor", approximate=True)))["one"]
    assert found.value_error == pytest.approx(0.5)
    assert found.note == "value: off by 0.5"


def test_without_a_reference_the_first_contender_of_a_label_is_the_reference():
    first, second = contender(VALUE, name="first"), contender(VALUE * 1.1, name="second")
    with pytest.raises(DisagreementError, match=r"'second' differs from 'first'"):
        check_answers(case_of(first, second, reference=False))
    assert check_answers(case_of(first, reference=False))["first"].value_error is None


def test_nothing_of_a_case_is_timed_if_one_contender_is_wrong():
    calls: list[str] = []
    good, bad = contender(VALUE, name="good", calls=calls), contender(VALUE * 2, name="bad", calls=calls)
    measured = run_case(case_of(good, bad), Effort(3, 1.0, 0))
    assert measured.results == []
    assert "'bad'" in measured.error
    assert calls == ["good", "bad"]  # once each, for the answers


def test_a_planted_error_in_a_real_pool_is_found():
    inputs = Inputs(2, 16, 9)
    answers = "spectral MaxExp(50)"
    expected = inputs.references({answers: partial(reference.spectral, curve=reference.maxexp(50))})

    def check(function):
        planted = inputs.contender("planted", "powerpool", answers, function)
        return check_answers(BenchCase("pools", inputs.name, inputs.sizes, [planted], expected))

    def constant_trace(x):
        moment = competitors.form_moment(x)
        divided = moment / moment.detach().diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return competitors.EighLoewner.apply(divided, 50)

    assert check(partial(competitors.eigh_loewner, eta=50))["planted"].note == ""
    with pytest.raises(DisagreementError, match="value of 'planted'"):
        check(partial(competitors.eigh_loewner, eta=49))
    with pytest.raises(DisagreementError, match="gradient of 'planted'"):
        check(constant_trace)


def test_memory_that_is_allocated_once_for_all_steps_does_not_count():
    kept = {}

    def step(watch):
        if "network" not in kept:
            kept["network"] = torch.ones(2**20)
        with watch.forward:
            value = torch.ones(2**10)
        return Answer(value)

    case = BenchCase("training", "lazy", {"channels": 1}, [Contender("powerpool", "powerpool", "powerpool", step)])
    measured = run_case(case, Effort(repetitions=3, budget=1.0, warm_up=0))
    assert measured.results[0].peak_bytes == 4 * 2**10
