//! The one table of routes. The router is built from it, metrics take their labels from it, and `docs/openapi.json`
//! must agree with it.

use axum::Router;
use axum::handler::Handler;
use axum::http::{HeaderValue, Method};
use axum::routing::{MethodFilter, MethodRouter, on};

use super::{Front, calls, guard, health, objects, placement, puts, segments};

/// A method of a path and what serves it.
struct Route {
    method: &'static str,
    path: &'static str,
    handler: MethodRouter<Front>,
}

fn route<H, T>(method: &'static str, path: &'static str, handler: H) -> Route
where
    H: Handler<T, Front>,
    T: 'static,
{
    let filter = match method {
        "GET" => MethodFilter::GET,
        "HEAD" => MethodFilter::HEAD,
        "PUT" => MethodFilter::PUT,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::POST,
    };
    Route {
        method,
        path,
        handler: on(filter, handler),
    }
}

const OBJECT: &str = "/v1/objects/{*key}";
const OBJECT_IN_NAMESPACE: &str = "/v1/namespaces/{namespace}/objects/{*key}";

fn table() -> Vec<Route> {
    let mut routes = vec![
        route("GET", "/livez", health::live),
        route("GET", "/readyz", health::ready),
        route("GET", "/metrics", health::metrics),
        route("GET", "/openapi.json", health::openapi),
        route("GET", "/v1/nodes", calls::nodes),
        route("GET", "/v1/segments", calls::segments),
        route("POST", "/v1/segments", segments::mount),
        route("DELETE", "/v1/segments/{id}", segments::unmount),
        route("POST", "/v1/segments/{id}/drain", segments::drain),
        route("GET", "/v1/segments/{id}/map", placement::segment_map),
        route("POST", "/v1/placement/dry-run", placement::dry_run),
        route("GET", "/v1/objects", calls::list),
        route("DELETE", "/v1/objects", calls::remove_page),
        route("GET", "/v1/namespaces/{namespace}/objects", calls::list),
        route("DELETE", "/v1/namespaces/{namespace}/objects", calls::remove_page),
        route("POST", "/v1/reserve", calls::reserve),
        route("PUT", "/v1/puts/{put_id}/{*key}", puts::upload),
        route("POST", "/v1/commit", calls::commit),
        route("POST", "/v1/abort", calls::abort),
        route("POST", "/v1/locate", calls::locate),
        route("POST", "/v1/exists", calls::exists),
        route("POST", "/v1/remove", calls::remove),
        route("POST", "/v1/keep", calls::keep),
    ];
    for path in [OBJECT, OBJECT_IN_NAMESPACE] {
        routes.push(route("GET", path, objects::get));
        routes.push(route("HEAD", path, objects::head));
        routes.push(route("PUT", path, objects::put));
        routes.push(route("DELETE", path, objects::delete));
    }
    routes
}

/// Serves every route of the table, and answers everything else with an error in the same form.
pub(super) fn router(front: Front) -> Router {
    let routes = table().into_iter().fold(Router::new(), |router, route| {
        tracing::debug!(method = route.method, path = route.path, "HTTP route");
        router.route(route.path, route.handler)
    });
    routes
        .fallback(guard::no_route)
        .method_not_allowed_fallback(guard::no_method)
        .layer(axum::middleware::from_fn_with_state(front.clone(), guard::guard))
        .with_state(front)
}

/// The methods of a path of the table, for `Allow`.
pub(super) fn allowed_methods(path: &str) -> HeaderValue {
    let of_path = table().into_iter().filter(|route| route.path == path);
    let mut methods: Vec<&str> = of_path.map(|route| route.method).collect();
    // What has `GET` has `HEAD`, whether or not it stands in the table.
    if methods.contains(&"GET") && !methods.contains(&"HEAD") {
        methods.push("HEAD");
    }
    HeaderValue::from_str(&methods.join(", ")).expect("methods are words")
}

/// A method as a label: those that no route has share one.
pub(super) fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::health::OPENAPI;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn document() -> Value {
        serde_json::from_str(OPENAPI).unwrap()
    }

    #[test]
    fn the_openapi_document_has_exactly_the_routes() {
        let served: BTreeSet<(String, String)> = table()
            .iter()
            .map(|route| (route.path.replace("{*", "{"), route.method.to_lowercase()))
            .collect();
        let mut described = BTreeSet::new();
        for (path, item) in document()["paths"].as_object().unwrap() {
            let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            described.extend(methods.map(|method| (path.clone(), method.clone())));
        }
        assert_eq!(described, served);
    }

    #[test]
    fn the_openapi_document_names_every_parameter_of_its_paths() {
        for (path, item) in document()["paths"].as_object().unwrap() {
            let in_path: BTreeSet<&str> = path
                .split('{')
                .skip(1)
                .filter_map(|part| part.split('}').next())
                .collect();
            let parameters = item["parameters"].as_array().cloned().unwrap_or_default();
            let named: BTreeSet<String> = parameters
                .iter()
                .map(resolve)
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
                .collect();
            assert_eq!(
                named.iter().map(String::as_str).collect::<BTreeSet<_>>(),
                in_path,
                "{path}"
            );
        }
    }

    fn resolve(value: &Value) -> Value {
        match value["$ref"].as_str() {
            Some(reference) => document()
                .pointer(&reference[1..])
                .unwrap_or_else(|| panic!("{reference} leads nowhere"))
                .clone(),
            None => value.clone(),
        }
    }

    #[test]
    fn every_reference_in_the_openapi_document_leads_somewhere() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(entries) => entries.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        references(&document(), &mut found);
        assert!(!found.is_empty());
        for reference in found {
            assert!(
                document().pointer(&reference[1..]).is_some(),
                "{reference} leads nowhere"
            );
        }
    }

    #[test]
    fn the_openapi_document_lists_every_error_code() {
        let listed = document()["components"]["schemas"]["ErrorCode"]["enum"].clone();
        let codes = tenon_protocol::error::ErrorCode::ALL.iter().map(|code| code.as_str());
        assert_eq!(listed, Value::from(codes.collect::<Vec<_>>()));
    }
}
