"""An agent that asks a language model what to do and does it: four tool calls, and it is killed in every one of its calls.

What the model said is recorded, so that the next life goes on with that answer and not with another one; a model call that
was cut short is made again, since asking does no harm but costs. What a tool did is done once.
Run it: ``python examples/agent.py``.
"""

from __future__ import annotations

import json
from typing import Any

from leasekeeper import Keeper, Observed, Timing, effect
from leasekeeper.runs.effect import Effect, Step
from leasekeeper.testing.outside import Refused, Trouble, call
from stage import TTL_S, Stage, outside, play

Arguments = dict[str, Any]
MODEL = "stub-1"
TASK = "Order ten boxes, pay for them, tell Ann, and note it in the shop's settings."


# ---------------------------------------------------------------- the tools


@effect(dedupes=True, key_ttl="24h")
def pay(step: Step, given: Arguments) -> Any:
    """Pay for an order; the same key pays once."""
    body = {"order": given["order"], "amount_cents": given["amount_cents"]}
    return call(outside(), "POST", "/charges", body, headers=step.headers(), timeout_s=step.remaining())


@effect(probe=True)
def buy(step: Step, given: Arguments) -> Any:
    """Order goods at a till that knows no keys, and whose list of sales is up to date."""
    body = {"order": given["order"], "amount_cents": given["amount_cents"]}
    return call(outside(), "POST", "/till/charges", body, headers=step.headers(), timeout_s=step.remaining())


@buy.preflight
def bought(step: Step, given: Arguments) -> Observed:
    """Whether it is in the list."""
    found = call(outside(), "GET", "/till/charges", query={"order": given["order"]})["charges"]
    return Observed(found[0] if found else None, applied=bool(found))


@effect(probe=True)
def tell(step: Step, given: Arguments) -> Any:
    """Send a mail, which cannot be taken back."""
    return call(outside(), "POST", "/mails", given, headers=step.headers(), timeout_s=step.remaining())


@tell.preflight
def told(step: Step, given: Arguments) -> Observed:
    """Whether it is in the outbox."""
    query = {"to": given["to"], "subject": given["subject"]}
    found = call(outside(), "GET", "/mails", query=query)["mails"]
    return Observed(found[0] if found else None, applied=bool(found))


@effect(fences=True, probe=True)
def note(step: Step, given: Arguments) -> Any:
    """Write a setting; the service refuses whoever is no longer the owner."""
    body = {"value": given["value"]}
    path = f"/configs/{given['name']}"
    return call(outside(), "PUT", path, body, headers=step.headers(), timeout_s=step.remaining())


@note.preflight
def noted(step: Step, given: Arguments) -> Observed:
    """Whether it says so already."""
    try:
        current = call(outside(), "GET", f"/configs/{given['name']}")
    except Refused as refused:
        if refused.status != 404:
            raise
        return Observed(None, applied=False)
    return Observed(current, applied=current["value"] == given["value"])


TOOLS: dict[str, Effect] = {"buy": buy, "pay": pay, "tell": tell, "note": note}


# ---------------------------------------------------------------- the agent


def ask_model(request: dict[str, Any]) -> Any:
    """One completion."""
    return call(outside(), "POST", "/v1/chat/completions", request)["choices"][0]["message"]


def agent(task_id: str) -> None:
    """The loop of every such agent: ask, do what it says, tell it what came of it, until it calls no tool."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    with Keeper.from_env(timing=Timing(ttl=TTL_S)) as keeper, keeper.run("agent", id=task_id) as run:
        for turn in range(1, 20):
            request = {"model": MODEL, "messages": messages, "tools": tools(task_id), "user": task_id}
            said = run.memo(f"ask-{turn}", ask_model, request)
            messages.append(said)
            if not said.get("tool_calls"):
                print(f"the model's last word: {said['content']}")
                return
            for number, wanted in enumerate(said["tool_calls"], 1):
                tool, given = wanted["function"]["name"], json.loads(wanted["function"]["arguments"])
                result = run.do(f"tool-{turn}.{number}", TOOLS[tool], given)
                messages.append({"role": "tool", "tool_call_id": wanted["id"], "content": json.dumps(result)})


def tools(task_id: str) -> list[dict[str, Any]]:
    """What the model may call. The stub takes its arguments from the defaults here, where a real one would think."""
    order = {"order": {"type": "string", "default": task_id}, "amount_cents": {"type": "integer", "default": 4200}}
    mail = {name: {"type": "string", "default": value} for name, value in letter(task_id).items()}
    setting = {"name": {"type": "string", "default": f"stock-{task_id}"}, "value": {"type": "integer", "default": 10}}
    parameters = {"buy": order, "pay": order, "tell": mail, "note": setting}
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
        for name, properties in parameters.items()
    ]


def letter(task_id: str) -> dict[str, str]:
    """What Ann is to be told."""
    return {"to": f"ann-{task_id}@example.org", "subject": "Ten boxes", "body": "They are on their way."}


# ---------------------------------------------------------------- the story


def story(stage: Stage) -> None:
    """One life for each call that the agent makes, killed in it; some that meet other trouble; one that is left alone."""
    for tool in ("till.charge", "payments.charge", "mail.send", "configs.write"):
        stage.kill("chat.complete")
        stage.kill(tool)
    stage.stumble(Trouble("fail", "chat.complete"))
    stage.stumble(Trouble("lose_reply", "chat.complete"))
    stage.kill("chat.complete")
    stage.say("the model takes longer for its last answer than a lease lasts without a heartbeat")
    stage.world.trouble(Trouble("delay", "chat.complete", ms=int(TTL_S * 1500)))
    stage.finish()
    stage.expect_agreement("agent")
    stage.expect("boxes bought", stage.count("till.charge", stage.id), 1)
    stage.expect("payments", stage.count("payments.charge", stage.id), 1)
    stage.expect("mails", stage.count("mail.send", letter(stage.id)["to"]), 1)
    stage.expect("settings written", stage.count("configs.write", f"stock-{stage.id}"), 1)
    stage.expect(
        "answers of the model: 5, and 1 for each that was cut short", stage.count("chat.complete", stage.id), 5 + 6
    )


if __name__ == "__main__":
    play(story, agent)
