"""The gate before the clock: who is let through, who is marked, who is refused."""

from functools import partial

import pytest
import torch

from powerpool.bench import competitors, reference
from powerpool.bench.agreement import DisagreementError, check_answers
from powerpool.bench.case import Answer, BenchCase, Contender
from powerpool.bench.inputs import Inputs
from powerpool.bench.runner import Effort, run_case

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
def test_a_wrong_value_is_refused_from_anyone_and_the_error_says_by_how_much(origin):
    wrong = VALUE + torch.tensor([0.0, 0.01])  # 0.01 of a norm of 5
    with pytest.raises(DisagreementError, match=r"a case: the value of 'one' .*'the answer' by 0.002 of its norm"):
        check_answers(case_of(contender(wrong, origin=origin)))


def test_lost_digits_of_a_competitor_are_marked_and_of_the_library_refused():
    lost = VALUE + torch.tensor([0.0, 0.002])  # 4e-4 of the norm
    assert check_answers(case_of(contender(lost, origin="competitor")))["one"].note == "value: off by 0.0004"
    with pytest.raises(DisagreementError, match=r"the value of 'one' .* by 0.0004 of its norm, more than 0.0001"):
        check_answers(case_of(contender(lost)))


def test_a_wrong_gradient_of_the_library_is_refused():
    with pytest.raises(DisagreementError, match=r"the gradient of 'one' .* by 0.2 of its norm, more than 0.001"):
        check_answers(case_of(contender(VALUE, GRADIENT + torch.tensor([1.0, 0.0]))))


@pytest.mark.parametrize(
    "gradient, note",
    [
        (GRADIENT + torch.tensor([1.0, 0.0]), "gradient: off by 0.2"),
        (torch.tensor([torch.nan, 5.0]), "gradient: not finite"),
        (torch.tensor([torch.inf, 5.0]), "gradient: not finite"),
        (None, "gradient: not finite"),
        (torch.zeros(3), "gradient: not finite"),
    ],
)
def test_a_wrong_gradient_of_a_competitor_is_marked_and_of_the_library_refused(gradient, note):
    found = check_answers(case_of(contender(VALUE, gradient, origin="competitor")))["one"]
    assert found.note == note
    assert found.value_error == 0
    with pytest.raises(DisagreementError, match="the gradient of 'one'"):
        check_answers(case_of(contender(VALUE, gradient)))


def test_nan_is_no_agreement():
    with pytest.raises(DisagreementError, match=r"the value of 'one' .* by nan"):
        check_answers(case_of(contender(VALUE * torch.nan, origin="competitor")))


def test_an_approximation_that_says_so_is_measured_not_refused():
    found = check_answers(case_of(contender(VALUE * 1.5, origin="competitor", approximate=True)))["one"]
    assert found.value_error == pytest.approx(0.5)
    assert found.note == "value: off by 0.5"


def test_without_a_reference_the_first_of_a_label_is_the_measure():
    first, second = contender(VALUE, name="first"), contender(VALUE * 1.1, name="second")
    with pytest.raises(DisagreementError, match=r"'second' differs from 'first' of 'the answer' by 0.1"):
        check_answers(case_of(first, second, reference=False))
    assert check_answers(case_of(first, reference=False))["first"].value_error is None


def test_nothing_of_a_case_is_timed_where_one_contender_is_wrong():
    calls: list[str] = []
    good, bad = contender(VALUE, name="good", calls=calls), contender(VALUE * 2, name="bad", calls=calls)
    measured = run_case(case_of(good, bad), Effort(3, 1.0, 0))
    assert measured.results == []
    assert "the value of 'bad' differs" in measured.error
    assert calls == ["good", "bad"]  # once each, for the answers


def test_a_planted_slip_in_a_real_pool_is_caught():
    inputs = Inputs(2, 16, 9)
    answers = "spectral MaxExp(50)"
    expected = {answers: lambda: reference.spectral(inputs.features, inputs.upstream, reference.maxexp(50))}

    def check(function):
        planted = inputs.contender("planted", "powerpool", answers, function)
        return check_answers(BenchCase("pools", inputs.name, inputs.sizes, [planted], expected))

    assert check(partial(competitors.eigh_loewner, eta=50))["planted"].note == ""
    with pytest.raises(DisagreementError, match="value of 'planted'"):
        check(partial(competitors.eigh_loewner, eta=49))
    with pytest.raises(DisagreementError, match="gradient of 'planted'"):  # the trace as a constant
        check(lambda x: competitors.EighLoewner.apply(_with_constant_trace(x), 50))


def _with_constant_trace(x):
    moment = competitors.form_moment(x)
    return moment / moment.detach().diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
