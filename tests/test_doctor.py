from launch import doctor


def test_a_missing_package_is_named_with_its_cure(capsys):
    assert doctor._extra("data", ["numpy", "no-such-package"]) == ["pip install -e '.[data]'"]
    assert doctor._extra("data", ["numpy"]) == []
    assert capsys.readouterr().out == "data: missing no-such-package\ndata: ready\n"


def test_the_environment_of_the_tests_is_ready(capsys):
    installed = doctor.requirements() is not None
    assert doctor.main([]) == (0 if installed else 1)
    assert ("Ready: make demo" if installed else "pip install -e") in capsys.readouterr().out


def test_requirements_are_those_of_setup():
    wanted = doctor.requirements()
    if wanted is not None:
        assert "jax" in wanted[""] and "grain" in wanted["data"] and "tensorboard" in wanted["report"]
