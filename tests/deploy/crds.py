"""The parts of other projects' resources that deploy/kubernetes uses: KEDA's and the Prometheus operator's.

No package has their schemas. Other fields may be right as well: whoever needs one adds it here, looked up.
"""


def _object(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list(of):
    return {"type": "array", "items": of, "minItems": 1}


TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}

_SCALING = _object(
    stabilizationWindowSeconds={**COUNT, "maximum": 3600},
    policies=_list(_object(("type", "value", "periodSeconds"), type={"enum": ["Percent", "Pods"]}, value=COUNT,
                           periodSeconds={**COUNT, "maximum": 1800})),
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
)  # fmt: skip

SPECS = {
    ("keda.sh/v1alpha1", "ScaledObject"): _object(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=_object(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        fallback=_object(
            ("failureThreshold", "replicas"), failureThreshold=COUNT, replicas=COUNT,
            behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
        ),
        advanced=_object(
            horizontalPodAutoscalerConfig=_object(behavior=_object(scaleUp=_SCALING, scaleDown=_SCALING))
        ),
        triggers=_list(
            _object(
                ("type", "metadata"), type=TEXT, name=TEXT, metadata=WORDS,
                authenticationRef=_object(("name",), name=TEXT),
            )
        ),
    ),
    ("keda.sh/v1alpha1", "TriggerAuthentication"): _object(
        secretTargetRef=_list(_object(("parameter", "name", "key"), parameter=TEXT, name=TEXT, key=TEXT)),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        ("selector", "podMetricsEndpoints"),
        selector=_object(matchLabels=WORDS),
        jobLabel=TEXT,
        podMetricsEndpoints=_list(_object(port=TEXT, path=TEXT, interval=DURATION, scrapeTimeout=DURATION)),
    ),
}  # fmt: skip

#: Fields of a trigger, and of the account, that KEDA's scaler of type redis reads.
REDIS_TRIGGER = {"address", "listName", "listLength", "activationListLength", "databaseIndex", "enableTLS"}
REDIS_ACCOUNT = {"address", "username", "password", "tls", "ca", "cert", "key", "keyPassword"}
