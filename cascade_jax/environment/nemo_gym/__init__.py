"""NeMo-Gym over HTTP, which is its contract: its servers as environments of ours, and ours as servers of its kind.

* `resources`: a client of resources servers (/seed_session, /{tool}, /verify), with our episode loop in this process
* `agents`: a client of agent servers (/run), whose tokens are put together again by `calls`
* `server`: any verifier or environment of ours as a resources server
* `responses`: the form in which what an assistant said travels (OpenAI Responses)

Nothing of NeMo-Gym is imported. The contract was read in its version 0.4.0.
"""
